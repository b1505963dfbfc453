"use strict";
// Shows what /events says. Whatever comes from the stream is set as text, never as HTML.

// A new state comes every second; after this long without one the page says so.
const NEWS_MS = 5000;
const RECONNECT_MS = 2000;
const DRAW_MS = 100;
// An applier reports every 10 s; three reports are missing.
const APPLIER_SILENT_MS = 30000;

const byId = (id) => document.getElementById(id);
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const sections = new Map();
// By keyspace: the looks of the last two minutes, each with a rate and a level per shard.
const pasts = new Map();
let state = null, receivedMs = performance.now(), source = null, colors = new Map();

/** What tests and the console may look at: the last state, and the timelines as last drawn. */
window.shardstream = { state: null, timelines: {} };

function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.body).getPropertyValue(name).trim());
  return colors.get(name);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set a text in which each place of the runbook is a link to it. */
function setLinked(node, text) {
  if (node.textContent === text) return;
  const parts = text.split(/(docs\/runbook\.md#[\w-]+)/);
  node.replaceChildren(...parts.map((part, i) => (i % 2 ? runbookLink(part) : part)));
}

function runbookLink(place) {
  const link = element("a", "", place);
  link.href = document.body.dataset.runbook + place.slice(place.indexOf("#"));
  // The page stays open beside it.
  link.target = "_blank";
  link.rel = "noreferrer";
  return link;
}

const count = (n) => Math.round(n).toLocaleString("en");
const seconds = (ms) => (ms === null ? "" : ms < 600e3 ? `${(ms / 1000).toFixed(1)} s` : minutes(ms / 1000));
const minutes = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);
const clock = (us) => new Date(us / 1000).toISOString().slice(11, 19) + "Z";
const moment = (us) => new Date(us / 1000).toISOString().replace("T", " ");

/** Keep one child per item, by key, in the items' order. */
function sync(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child !== at) parent.insertBefore(child, at);
    else at = at.nextElementSibling;
    fill(child, item);
  }
  for (const gone of old.values()) gone.remove();
}

// What was seen, and when

/** How long ago a keyspace was seen, in ms. */
const ageOf = (keyspace) => keyspace.age_ms + performance.now() - receivedMs;
/** Whether what is shown of a keyspace may not be so any more. */
const isOld = (keyspace) => keyspace.error !== "" || performance.now() - receivedMs >= NEWS_MS;

function remember(name, samples) {
  const past = pasts.get(name) || [];
  past.push(...samples.filter((sample) => !past.length || sample.at_us > past.at(-1).at_us));
  pasts.set(name, past.filter((sample) => sample.at_us > past.at(-1).at_us - WINDOW_US));
}

/** Begin with what the server has seen, and go on with what came meanwhile. */
function recall() {
  fetch("history.json").then((answer) => (answer.ok ? answer.json() : {})).then((found) => {
    for (const [name, samples] of Object.entries(found)) {
      const since = pasts.get(name) || [];
      pasts.delete(name);
      remember(name, samples);
      remember(name, since);
    }
    if (state) render();
  }, () => null);
}

// Keyspaces

function makeKeyspace() {
  return byId("keyspace").content.firstElementChild.cloneNode(true);
}

function fillKeyspace(section, keyspace) {
  sections.set(keyspace.keyspace, section);
  section.dataset.level = keyspace.is_held_back ? "red" : "ok";
  setText(section.querySelector(".sentence .shape"), SHAPES[section.dataset.level]);
  setLinked(section.querySelector(".sentence .text"), keyspace.headline);
  const isKnown = keyspace.shards !== undefined;
  fillCauses(section.querySelector(".causes"), isKnown && keyspace.is_held_back && !keyspace.error ? keyspace : null);
  section.querySelector(".timeline").hidden = section.querySelector(".wide").hidden = !isKnown;
  if (!isKnown) return;
  section.dataset.old = isOld(keyspace) ? "yes" : "no";
  section.querySelector(".wide").setAttribute("aria-label", `Shards of ${keyspace.keyspace}`);
  const body = section.querySelector("tbody");
  sync(body, keyspace.shards.flatMap((shard) => [[shard, false], [shard, true]]),
    ([shard, isMore]) => `${shard.shard}${isMore ? " more" : ""}`,
    ([shard, isMore]) => (isMore ? makeMore() : makeShard(shard, body)),
    (row, [shard, isMore]) => (isMore ? fillMore(row, shard) : fillShard(row, shard, keyspace)));
  card(section, "reshards", keyspace.reshards, (r) => r.reshard_id, (li, r) => fillReshard(li, r, keyspace));
  card(section, "copies", keyspace.copies, (c) => `${c.shard} ${c.copy_id} ${c.table}`, fillCopy);
  for (const [name, readers] of Object.entries(byKind(keyspace.readers))) {
    card(section, name, readers, (r) => r.name, fillReader);
  }
  card(section, "hops", keyspace.hops.slice(-5).reverse(), (h) => h.reshard_id, fillHop);
  const ddls = keyspace.shards.filter((s) => s.ddl).sort((a, b) => b.ddl.at_us - a.ddl.at_us).slice(0, 4);
  card(section, "ddls", ddls, (s) => s.shard, (li, s) => lines(li, [`${clock(s.ddl.at_us)} ${s.shard}: ${s.ddl.kind}`, s.ddl.tables]));
  card(section, "stops", keyspace.stops, (s) => `${s.shard} ${s.since_us}`, fillStop);
}

/** What to type, and folded below it why; a click on a command selects all of it. */
function fillCauses(found, keyspace) {
  found.hidden = keyspace === null || !keyspace.causes.length;
  if (found.hidden) return;
  sync(found.querySelector(".commands"), keyspace.causes.filter((cause) => cause.command), (cause) => cause.shard, () => {
    const li = element("li");
    li.append(element("div", "facts"), element("code", "command"));
    return li;
  }, (li, cause) => {
    setText(li.firstElementChild, cause.when);
    setText(li.lastElementChild, cause.command);
  });
  const facts = keyspace.causes.map((cause) => `${cause.shard}: ${cause.text}; see ${cause.runbook}`);
  sync(found.querySelector("details .facts"), [...facts, keyspace.readable].map((text, i) => [i, text]), ([i]) => String(i),
    () => element("li"), (li, [, text]) => setLinked(li, text));
}

function card(section, name, items, keyOf, fill) {
  const found = section.querySelector(`.${name}`);
  found.hidden = items.length === 0;
  sync(found.querySelector("ul"), items, keyOf, () => element("li"), fill);
}

// Shards

function makeShard(shard, body) {
  const row = element("tr");
  const name = element("th");
  name.scope = "row";
  const button = element("button", "", shard.shard);
  const more = () => body.querySelector(`[data-key="${CSS.escape(`${shard.shard} more`)}"]`);
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    more().hidden = !more().hidden;
    button.setAttribute("aria-expanded", String(!more().hidden));
  });
  const cell = element("td");
  cell.append(button);
  row.append(cell);
  for (const kind of ["state", "number behind", "number rate", "spark", "number lag", "server", "progress"]) {
    row.append(element("td", kind));
  }
  row.querySelector(".spark").setAttribute("aria-hidden", "true");
  return row;
}

const WORDS = { ok: "serving", amber: "standing still", filling: "filling", ended: "ended" };

function fillShard(row, shard, keyspace) {
  const { level: seen } = shard, level = isOld(keyspace) && seen !== "ended" ? "old" : seen;
  row.dataset.level = level;
  const word = seen === "red" ? (shard.state === "silent" ? "silent" : "far behind") : WORDS[seen];
  const since = level === "old" ? `, ${minutes(ageOf(keyspace) / 1000)} ago` : keyspace.held_by.includes(shard.shard) ? ", holds readers back" : "";
  const cell = row.querySelector(".state");
  cell.className = `state ${level}`;
  setText(cell, `${SHAPES[level]} ${word}${since}`);
  setText(row.querySelector(".behind"), seconds(shard.behind_ms));
  setText(row.querySelector(".rate"), count(shard.records_per_s));
  setText(row.querySelector(".lag"), seconds(shard.source_lag_ms));
  setText(row.querySelector(".server"), shard.server);
  setText(row.querySelector(".progress"), shard.silent_ms === null ? "never" : `${seconds(shard.silent_ms)} ago`);
  spark(row.querySelector(".spark"), shard.shard, pasts.get(keyspace.keyspace) || []);
}

function spark(cell, shard, past) {
  if (!cell.plot) {
    cell.plot = new uPlot({
      width: 120, height: 24, padding: [2, 0, 2, 0],
      cursor: { show: false }, legend: { show: false },
      axes: [{ show: false }, { show: false }],
      scales: { x: { time: false, range: () => [state.at_us - WINDOW_US, state.at_us] }, y: { range: (_plot, _min, max) => [0, Math.max(max, 1)] } },
      series: [{}, { stroke: () => color("--ok"), width: 1.5, points: { show: false } }],
    }, [[], []], cell);
  }
  cell.rates = past.map((sample) => (sample.shards[shard] || [null])[0]);
  cell.plot.setData([past.map((sample) => sample.at_us), cell.rates]);
}

function makeMore() {
  const row = element("tr", "more");
  const cell = element("td");
  cell.colSpan = 8;
  row.append(cell);
  row.hidden = true;
  return row;
}

function fillMore(row, shard) {
  const facts = [`${count(shard.records)} records`];
  if (shard.flavor) facts.push(shard.flavor);
  if (shard.watermark_us !== null) facts.push(`watermark ${moment(shard.watermark_us)}`);
  if (shard.written_us !== null) facts.push(`its producer wrote last at ${moment(shard.written_us)}`);
  if (shard.off_ms_max !== null) facts.push(`its producer may be off for ${minutes(shard.off_ms_max / 1000)}`);
  if (shard.skipped) facts.push(`the log has skips: see shardstream status`);
  setText(row.firstElementChild, facts.join(" · "));
}

// Cards

function lines(li, texts) {
  sync(li, texts.map((text, i) => [i, text]), ([i]) => String(i),
    ([i]) => element("div", i ? "facts" : ""), (line, [, text]) => setLinked(line, text));
}

const STEPS = ["create", "fill", "stop writes", "switch", "complete"];

function fillReshard(li, reshard, keyspace) {
  const stopped = keyspace.stopped.find((each) => each.reshard_id === reshard.reshard_id);
  const at = reshard.state === "SWITCHED" ? 4 : stopped ? 2 : 1;
  if (!li.firstElementChild) li.append(element("div"), element("ol", "flow"), element("div", "facts"));
  const [head, flow, facts] = li.children;
  setText(head, `${reshard.reshard_id}: ${reshard.sources.join(", ")} to ${reshard.targets.join(", ")}`);
  sync(flow, STEPS.map((name, i) => ({ name, i })), (step) => step.name, (step) => element("li", "", step.name), (step, { i }) => {
    step.classList.toggle("done", i < at);
    if (i === at) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  });
  const done = `switched; shardstream reshard complete ${keyspace.keyspace} ${reshard.reshard_id} removes what it left on the servers`;
  const said = reshard.state === "SWITCHED" ? [done] : reshard.targets.map((target) => {
    const found = keyspace.appliers.find((each) => each.reshard_id === reshard.reshard_id && each.target === target);
    const run = `shardstream reshard run ${keyspace.keyspace} ${reshard.reshard_id} ${target}`;
    if (!found) return `${target} is not being filled: no applier has reported; run ${run}`;
    if (found.said_ms > APPLIER_SILENT_MS) {
      return `${target} is ${seconds(found.behind_ms)} behind its sources: its applier on ${found.host} last reported ${seconds(found.said_ms)} ago; if it has ended, run ${run}`;
    }
    return `${target} is ${seconds(found.behind_ms)} behind its sources, as its applier reported ${seconds(found.said_ms)} ago`;
  });
  for (const shard of keyspace.shards.filter((each) => each.state === "filling" && reshard.targets.includes(each.shard))) {
    const produce = `shardstream produce ${keyspace.keyspace} ${shard.shard}`;
    if (shard.silent_ms === null) said.push(`the producer of ${shard.shard} has not run yet; run ${produce}`);
    else if (shard.is_silent) said.push(`the producer of ${shard.shard} has written nothing for ${seconds(shard.silent_ms)}; if it has ended, run ${produce}`);
  }
  if (stopped) said.push(`writes are stopped on ${stopped.shards.join(", ")} since ${clock(stopped.since_us)}`);
  setText(facts, said.join("; "));
}

function fillCopy(li, copy) {
  if (!li.firstElementChild) li.append(element("div"), element("progress"), element("div", "facts"));
  const [head, bar, facts] = li.children;
  setText(head, `${copy.table} on ${copy.shard}: ${copy.state}`);
  bar.setAttribute("aria-label", `copy of ${copy.table} on ${copy.shard}`);
  bar.max = Math.max(copy.rows_estimated, copy.rows_read, 1);
  bar.value = copy.rows_read;
  const left = copy.seconds_left === null ? "" : `, ${minutes(copy.seconds_left)} left`;
  const note = copy.note ? `: ${copy.note}` : "";
  setText(facts, `${count(copy.rows)} of about ${count(copy.rows_estimated)} rows, ${count(copy.rows_per_s)} rows/s${left}${note}`);
}

function byKind(readers) {
  const of = (...kinds) => readers.filter((reader) => kinds.includes(reader.kind));
  const found = { caches: of("cache"), sinks: of("query") };
  return { ...found, readers: readers.filter((reader) => !Object.values(found).flat().includes(reader)) };
}

function fillReader(li, reader) {
  const behind = Object.entries(reader.events_behind).map(([shard, n]) => `${shard}: ${count(n)}`);
  const lag = reader.behind_ms === null ? "" : `, ${seconds(reader.behind_ms)} behind`;
  lines(li, [`${reader.name}${lag}`,
    `events behind: ${behind.join(", ") || "none"}; epoch ${reader.epoch}; ${reader.host}, ${seconds(reader.said_ms)} ago`,
    ...(reader.others.length ? [`several processes use this name: ${reader.others.join(", ")}`] : [])]);
}

function fillHop(li, hop) {
  lines(li, [`${clock(hop.hop_time_us)} ${hop.sources.join(", ")} became ${hop.targets.join(", ")}`, hop.reshard_id]);
}

function fillStop(li, stop) {
  const end = stop.until_us === null ? "until now" : `for ${seconds((stop.until_us - stop.since_us) / 1000)}`;
  lines(li, [`${clock(stop.since_us)} ${stop.shard}: no progress ${end}`,
    ...(stop.reason ? [stop.reason] : []), `${stop.server}; ${stop.runbook}`]);
}

// The whole page

function render() {
  sync(byId("keyspaces"), state.keyspaces, (keyspace) => keyspace.keyspace, makeKeyspace, fillKeyspace);
  document.body.dataset.number = state.number;
  const bad = state.keyspaces.filter((keyspace) => keyspace.is_held_back);
  document.title = bad.length ? `✕ ${bad.map((each) => each.keyspace).join(", ")} · shardstream` : "shardstream";
  // The sentence changes every second: only what is wrong is read aloud, once.
  setText(byId("announced"), bad.map((each) => `${each.keyspace} is held back: ${each.error || (each.held_by || []).join(", ")}`).join("; "));
}

function draw() {
  if (!state || document.hidden) return;
  const sinceMs = performance.now() - receivedMs;
  for (const keyspace of state.keyspaces) {
    if (keyspace.shards === undefined) continue;
    const timeline = timelineOf(keyspace, state.at_us + sinceMs * 1000, isOld(keyspace), pasts.get(keyspace.keyspace) || []);
    const canvas = sections.get(keyspace.keyspace).querySelector("canvas");
    const told = timeline.lanes.map((lane) => `${lane.shard} ${lane.level}`).join(", ");
    const label = `Lanes of ${keyspace.keyspace}: ${told}`;
    if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
    drawTimeline(canvas, timeline, color);
    window.shardstream.timelines[keyspace.keyspace] = timeline;
  }
}

function tellConnection() {
  const silentMs = performance.now() - receivedMs;
  const unseen = state === null ? [] : state.keyspaces.filter((each) => each.error && each.age_ms !== null).map(ageOf);
  const isFresh = state !== null && silentMs < NEWS_MS && !unseen.length;
  const isOpen = source.readyState === EventSource.OPEN;
  document.body.dataset.connected = isFresh || state === null ? "yes" : "no";
  const late = isOpen ? "serve has seen nothing new" : "no connection to serve";
  setText(document.querySelector("#connection .shape"), isFresh ? "●" : "✕");
  setText(document.querySelector("#connection .text"),
    isFresh ? `live, ${clock(state.at_us)}` : state === null ? "connecting" : `${late} for ${minutes(Math.max(silentMs, ...unseen) / 1000)}`);
  if (state) render();
}

function connect() {
  source = new EventSource("events");
  source.onopen = recall;
  source.onmessage = (event) => {
    state = window.shardstream.state = JSON.parse(event.data);
    receivedMs = performance.now();
    for (const each of state.keyspaces) {
      if (each.error || !each.shards) continue;
      const shards = Object.fromEntries(each.shards.map((shard) => [shard.shard, [shard.records_per_s, shard.level]]));
      remember(each.keyspace, [{ at_us: each.seen_us, shards }]);
    }
    tellConnection();
    draw();
  };
  source.onerror = () => {
    tellConnection();
    // A proxy's error page ends the source for good; a refused token needs the form again.
    if (source.readyState !== EventSource.CLOSED) return;
    fetch("status.json").then((answer) => (answer.status === 401 ? location.reload() : null), () => null);
    setTimeout(connect, RECONNECT_MS);
  };
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = new Map();
  draw();
});
window.addEventListener("resize", draw);
setInterval(tellConnection, 1000);
setInterval(() => (still.matches ? null : draw()), DRAW_MS);
connect();
