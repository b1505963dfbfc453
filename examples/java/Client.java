// Every change of all shards in one order, as lines of a file: an audit log, or a loader's input.
//
// `shardstream serve --streams` sends each change as a server-sent event. The event's id is the
// position in the stream behind it. A line holds the id and the change, so the last line says where
// to go on: the program may be killed at any moment, and loses and repeats nothing.
// Needs Java 17 or newer, and no library.
//
//   shardstream serve --streams
//   java examples/java/Client.java 'http://127.0.0.1:9644/v1/streams/commerce?start=earliest' log

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class Client {
  public static void main(String[] arguments) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    try (RandomAccessFile log = new RandomAccessFile(arguments[1], "rw")) {
      while (true) {
        String id = lastId(log);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(arguments[0]))
            .header("Accept", "text/event-stream");
        if (!id.isEmpty()) request.header("Last-Event-ID", id); // it wins over `start`
        try {
          follow(client.send(request.build(), BodyHandlers.ofLines()), log);
        } catch (IOException | UncheckedIOException gone) {
          System.err.println(gone); // the server or the disk; all else ends the program
        }
        Thread.sleep(1000);
      }
    }
  }

  static void follow(HttpResponse<Stream<String>> answer, RandomAccessFile log) throws IOException {
    try (Stream<String> lines = answer.body()) {
      if (answer.statusCode() != 200)
        throw new IllegalStateException(lines.collect(Collectors.joining("\n")));
      String id = "", name = "";
      for (String line : (Iterable<String>) lines::iterator) {
        if (line.startsWith("id: ")) id = line.substring(4);
        if (line.startsWith("event: ")) name = line.substring(7);
        if (!line.startsWith("data: ") || name.equals("watermark")) continue;
        if (name.equals("error")) throw new IllegalStateException(line);
        log.write((id + "\t" + line.substring(6) + "\n").getBytes(UTF_8));
      }
    }
  }

  /** Cuts off what a kill has left of a line; returns the id of the last one, "" if there is none. */
  static String lastId(RandomAccessFile log) throws IOException {
    long end = lineBegin(log, log.length());
    log.setLength(end);
    log.seek(lineBegin(log, end - 1));
    String line = end == 0 ? "\t" : log.readLine();
    log.seek(end);
    return line.substring(0, line.indexOf('\t'));
  }

  /** Returns where the line begins that ends at a place. */
  static long lineBegin(RandomAccessFile log, long end) throws IOException {
    for (long at = end; at > 0; at--) {
      log.seek(at - 1);
      if (log.read() == '\n') return at;
    }
    return 0;
  }
}
