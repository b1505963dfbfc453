// Node's own EventSource: prints each event as it came. Arguments: the URL, and names of events.
const [url, ...names] = process.argv.slice(2);
const source = new EventSource(url);
for (const name of names) {
  source.addEventListener(name, ({ data, lastEventId }) => {
    if (data === undefined) return;
    process.stdout.write(`id: ${lastEventId}\nevent: ${name}\ndata: ${data}\n\n`);
  });
}
