// A small table of all shards, kept in the memory of a Node service: prices, flags, exchange rates.
//
// `shardstream serve --streams` sends each change as a server-sent event. The event's id is the
// position in the stream behind it. The rows and the last id are stored in one file, so the program
// may be killed at any moment: started again, it loses no change and applies none twice.
// Needs Node 18 or newer, and no package.
//
//   shardstream serve --streams
//   node examples/node/client.mjs http://127.0.0.1:9644/v1/streams/commerce shop.products rows.json

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";

const [stream, table, file] = process.argv.slice(2);
// `start` counts only without an id; `copy` brings the rows that are older than the logs, too.
const url = `${stream}?start=earliest&table=${table}`;
const state = existsSync(file)
  ? JSON.parse(readFileSync(file, "utf8"))
  : { id: "", changes: 0, rows: {} };

function store() {
  // The new file takes the place of the old one as a whole.
  writeFileSync(`${file}.new`, JSON.stringify(state));
  renameSync(`${file}.new`, file);
}

// TRUNCATE, DROP or ALTER of the table may change rows that no event shows.
function hidesChanges(statement) {
  if (statement.toLowerCase().includes(table.split(".")[1].toLowerCase()))
    return !/^CREATE (TABLE|INDEX)/i.test(statement);
  return /DROP\s+(DATABASE|SCHEMA)/i.test(statement);
}

// `before` and `after` are row images, as in Debezium: INSERT and READ (a copied row) have `after`,
// DELETE has `before`, UPDATE both. JSON.parse rounds numbers above 2^53.
function apply(name, change) {
  if (name === "row") {
    if (change.before) delete state.rows[change.before.id];
    if (change.after) state.rows[change.after.id] = change.after;
    state.changes++;
  } else if (name === "error" || name === "skip") throw new Error(JSON.stringify(change));
  else if ((name === "ddl" || name === "truncate") && hidesChanges(change.statement))
    throw new Error(`${change.shard}: ${change.statement}\nremove ${file}, and start again`);
}

async function follow() {
  const headers = { accept: "text/event-stream" };
  if (state.id) headers["last-event-id"] = state.id;
  const answer = await fetch(url, { headers });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of answer.body) {
    const events = (text + decoder.decode(bytes, { stream: true })).split("\n\n");
    text = events.pop(); // the beginning of the next event
    for (const event of events) {
      const field = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s)));
      if (field.data) apply(field.event, JSON.parse(field.data));
      if (field.id) state.id = field.id;
    }
    store();
  }
}

for (;;) {
  try {
    await follow();
  } catch (error) {
    // A server that is gone; all else ends the program.
    if (!(error instanceof TypeError && error.cause)) throw error;
    console.error(`${error.message}: ${error.cause.message}`);
  }
  await new Promise((resolve) => setTimeout(resolve, 1000));
}
