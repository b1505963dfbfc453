"use strict";
// The timeline: what it shows as a value (`timelineOf`), and how that is drawn (`drawTimeline`).

const WINDOW_US = 120e6;
// Levels are the server's; "old" is what it could not see again.
const SHAPES = { ok: "●", amber: "▲", red: "✕", filling: "◌", ended: "■", old: "○" };

/**
 * The lanes in key-range order, with their last DDL, and the reshards whose hop is in sight; times
 * in microseconds. `past`: the looks of the last two minutes, which color the lanes. Drawing adds
 * where each fork's marks lie: `marks`.
 */
function timelineOf(keyspace, nowUs, isOld, past) {
  const fromUs = nowUs - WINDOW_US;
  const hops = keyspace.hops.filter((hop) => hop.hop_time_us > fromUs);
  const lanes = [];
  for (const shard of keyspace.shards) {
    const end = hops.find((hop) => hop.sources.includes(shard.shard));
    const begin = hops.find((hop) => hop.targets.includes(shard.shard));
    if (shard.state === "ended" && !end) continue;
    const watermarkUs = shard.watermark_us === null ? fromUs : shard.watermark_us;
    const beginUs = begin ? begin.hop_time_us : fromUs;
    const toUs = Math.min(nowUs, Math.max(fromUs, end ? end.hop_time_us : watermarkUs));
    lanes.push({
      shard: shard.shard,
      level: isOld && shard.state !== "ended" ? "old" : shard.level,
      fromUs: beginUs,
      toUs,
      parts: partsOf(shard, past, beginUs, toUs),
      ddlUs: shard.ddl && shard.ddl.at_us > fromUs ? shard.ddl.at_us : null,
    });
  }
  const seen = new Set(lanes.map((lane) => lane.shard));
  const forks = hops.map((hop) => ({
    reshard: hop.reshard_id,
    atUs: hop.hop_time_us,
    sources: hop.sources.filter((shard) => seen.has(shard)),
    targets: hop.targets.filter((shard) => seen.has(shard)),
  }));
  return { fromUs, nowUs, frontierUs: keyspace.frontier_us, lanes, forks };
}

/** A lane in the levels that its shard had: `level` from `fromUs` to `toUs`. */
function partsOf(shard, past, fromUs, toUs) {
  const parts = [];
  for (const sample of past) {
    const level = shard.state === "ended" ? "ended" : (sample.shards[shard.shard] || [0, shard.level])[1];
    const last = parts.at(-1);
    if (last && last.level === level) continue;
    // What came before the first look is taken for the same.
    const beginUs = last ? Math.min(toUs, Math.max(fromUs, sample.at_us)) : fromUs;
    if (last) last.toUs = beginUs;
    parts.push({ level, fromUs: beginUs, toUs });
  }
  if (!parts.length) parts.push({ level: shard.level, fromUs, toUs });
  return parts.filter((part) => part.toUs > part.fromUs);
}

const LANE_PX = 22, TOP_PX = 8, BOTTOM_PX = 20, BAR_PX = 10, RIGHT_PX = 14;

/** Draw a timeline; `color` returns the value of a CSS variable. */
function drawTimeline(canvas, timeline, color) {
  const widthPx = canvas.clientWidth, heightPx = TOP_PX + timeline.lanes.length * LANE_PX + BOTTOM_PX;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${heightPx}px`;
  canvas.width = Math.round(widthPx * scale);
  canvas.height = Math.round(heightPx * scale);
  const ink = canvas.getContext("2d");
  ink.scale(scale, scale);
  ink.font = '12px system-ui, "DejaVu Sans", sans-serif';
  ink.textBaseline = "middle";
  const names = timeline.lanes.map((lane) => ink.measureText(lane.shard).width);
  const leftPx = Math.min(220, Math.max(60, ...names) + 40);
  const xOf = (us) => leftPx + ((us - timeline.fromUs) / WINDOW_US) * (widthPx - leftPx - RIGHT_PX);
  const yOf = (i) => TOP_PX + (i + 0.5) * LANE_PX;
  drawAxis(ink, timeline, xOf, heightPx, color);
  timeline.lanes.forEach((lane, i) => drawLane(ink, lane, xOf, yOf(i), color));
  const rows = new Map(timeline.lanes.map((lane, i) => [lane.shard, yOf(i)]));
  for (const fork of timeline.forks) drawFork(ink, fork, xOf(fork.atUs), rows, color);
  if (timeline.frontierUs !== null && timeline.frontierUs > timeline.fromUs) {
    ink.fillStyle = color("--frontier");
    ink.fillRect(xOf(timeline.frontierUs) - 1, 2, 2, heightPx - BOTTOM_PX);
  }
}

function drawAxis(ink, timeline, xOf, heightPx, color) {
  ink.strokeStyle = color("--line");
  ink.fillStyle = color("--soft");
  ink.lineWidth = 1;
  ink.textAlign = "center";
  for (let s = 0; s <= 120; s += 30) {
    const x = Math.round(xOf(timeline.nowUs - s * 1e6)) + 0.5;
    ink.beginPath();
    ink.moveTo(x, 2);
    ink.lineTo(x, heightPx - BOTTOM_PX + 2);
    ink.stroke();
    ink.textAlign = s === 0 ? "right" : "center";
    ink.fillText(s === 0 ? "now" : `−${s} s`, s === 0 ? x + 12 : x, heightPx - 9);
  }
}

function drawLane(ink, lane, xOf, y, color) {
  const from = xOf(lane.fromUs), to = xOf(lane.toUs);
  ink.textAlign = "left";
  ink.fillStyle = color(`--${lane.level}`);
  ink.fillText(SHAPES[lane.level], 10, y);
  ink.fillStyle = color(lane.level === "ended" ? "--ended" : "--ink");
  ink.fillText(lane.shard, 26, y, 190);
  ink.strokeStyle = color(`--${lane.level}-lane`);
  if (lane.level === "filling") {
    // Nobody reads it yet.
    ink.setLineDash([3, 4]);
    ink.lineWidth = 3;
    ink.beginPath();
    ink.moveTo(from, y);
    ink.lineTo(to, y);
    ink.stroke();
    ink.setLineDash([]);
  } else if (to > from) {
    for (const part of lane.parts) {
      ink.fillStyle = color(`--${part.level}-lane`);
      ink.fillRect(xOf(part.fromUs), y - BAR_PX / 2, xOf(part.toUs) - xOf(part.fromUs), BAR_PX);
    }
  }
  if (lane.ddlUs !== null) {
    ink.fillStyle = color("--ink");
    ink.fillRect(Math.round(xOf(lane.ddlUs)) - 1, y - BAR_PX / 2 - 3, 2, BAR_PX + 6);
  }
  if (lane.level !== "ended" && to > from) {
    ink.textAlign = "center";
    ink.fillStyle = color(`--${lane.level}`);
    ink.fillText(SHAPES[lane.level], to, y);
  }
}

/** Curves from each source to each target at the hop time; diamonds for the ENDs and the BEGINs. */
function drawFork(ink, fork, x, rows, color) {
  ink.strokeStyle = ink.fillStyle = color("--ink");
  ink.lineWidth = 1.5;
  for (const source of fork.sources) {
    for (const target of fork.targets) {
      ink.beginPath();
      ink.moveTo(x - 12, rows.get(source));
      ink.bezierCurveTo(x + 2, rows.get(source), x - 2, rows.get(target), x + 12, rows.get(target));
      ink.stroke();
    }
  }
  fork.marks = [
    ...fork.sources.map((shard) => ({ kind: "END", shard, x: x - 12, y: rows.get(shard) })),
    ...fork.targets.map((shard) => ({ kind: "BEGIN", shard, x: x + 12, y: rows.get(shard) })),
  ];
  for (const { x: at, y } of fork.marks) {
    ink.beginPath();
    ink.moveTo(at - 5, y);
    ink.lineTo(at, y - 5);
    ink.lineTo(at + 5, y);
    ink.lineTo(at, y + 5);
    ink.fill();
  }
}
