// Java's HttpClient and Arrow's reader: prints what it reads as server-sent events, of which the
// last before a position has it as its id. Arguments: the URL, and a position to go on from or "".
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.channels.Channels;
import org.apache.arrow.flatbuf.KeyValue;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageChannelReader;
import org.apache.arrow.vector.ipc.message.MessageResult;

public class ArrowLines {
  static String position = "";

  /** Keeps the position, which is in the metadata of a message and not of the batch. */
  static class Messages extends MessageChannelReader {
    Messages(InputStream body, BufferAllocator allocator) {
      super(new ReadChannel(Channels.newChannel(body)), allocator);
    }

    @Override
    public MessageResult readNext() throws IOException {
      MessageResult found = super.readNext();
      for (int at = 0; found != null && at < found.getMessage().customMetadataLength(); at++) {
        KeyValue pair = found.getMessage().customMetadata(at);
        if (pair.key().equals("position")) position = pair.value();
      }
      return found;
    }
  }

  public static void main(String[] arguments) throws Exception {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(arguments[0]))
        .header("Accept", "application/vnd.apache.arrow.stream");
    if (!arguments[1].isEmpty()) request.header("Last-Event-ID", arguments[1]);
    HttpResponse<InputStream> answer = HttpClient.newHttpClient()
        .send(request.build(), HttpResponse.BodyHandlers.ofInputStream());
    if (answer.statusCode() != 200) System.exit(1);
    RootAllocator allocator = new RootAllocator(); // not closed: a cut leaves buffers of a batch
    try (InputStream body = answer.body()) {
      while (true) print(new ArrowStreamReader(new Messages(body, allocator), allocator));
    } catch (IOException cut) {
      System.err.println(cut);
    } finally {
      System.exit(0); // the HttpClient's threads would go on
    }
  }

  static void print(ArrowStreamReader reader) throws IOException {
    VectorSchemaRoot root = reader.getVectorSchemaRoot();
    boolean hasRows = root.getVector("shard") != null;
    StringBuilder events = new StringBuilder();
    while (reader.loadNextBatch()) {
      for (int row = 0; row < root.getRowCount(); row++) {
        String data = hasRows
            ? "{\"shard\": \"" + root.getVector("shard").getObject(row)
                + "\", \"seq\": " + root.getVector("seq").getObject(row) + "}"
            : root.getVector("event").getObject(row).toString();
        events.append("event: " + (hasRows ? "row" : "other") + "\ndata: " + data + "\n\n");
      }
    }
    reader.close(false);
    if (!position.isEmpty()) {
      events.append("id: " + position + "\nevent: position\ndata: {}\n\n");
      position = "";
    }
    System.out.print(events);
    System.out.flush();
  }
}
