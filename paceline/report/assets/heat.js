"use strict";
// A map of rows over time on a canvas, with its rows named, its incidents above, and what stands out in words.
const Heat = (() => {
  const { el, moment, number, times, many, tick, STEPS_S } = Page;
  let painted = null;

  // A perceptually even ramp from calm to alarming; the same in light and dark, so that pictures can be compared.
  const STOPS = [
    [38, 70, 120],
    [44, 120, 160],
    [120, 175, 170],
    [240, 220, 140],
    [244, 150, 60],
    [235, 60, 40],
    [255, 30, 30],
  ];
  const ramp = (share) => {
    const at = Math.min(1, Math.max(0, share)) * (STOPS.length - 1);
    const low = Math.floor(at),
      high = Math.min(low + 1, STOPS.length - 1);
    return STOPS[low].map((value, i) => Math.round(value + (STOPS[high][i] - value) * (at - low)));
  };
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  // Unpacked once, when a map is first shown.
  const unpacked = new Map();
  const cellsOf = (map) => {
    if (!unpacked.has(map)) {
      const cells = bytes(map.cells),
        who = map.who ? bytes(map.who) : null;
      unpacked.set(map, { cells, who, worst: worst(map, cells, who) });
    }
    return unpacked.get(map);
  };
  const nameOf = (map, row, within) => map.labels[Math.min(row * map.group + within, map.labels.length - 1)];
  const said = (map, value) => (map.unit === "\u00d7" ? times(value) : `${number(value)} ${map.unit}`);
  // What is beyond the scale's end is drawn as its end, and is said to be more.
  const ended = (map, text) => (map.beyond ? `${text} or ${map.worst === "low" ? "less" : "more"}` : text);
  const valueOf = (map, cell) => {
    const text = said(map, map.low + (cell / 254) * (map.high - map.low));
    return cell === (map.worst === "low" ? 0 : 254) ? ended(map, text) : text;
  };
  const rowsOf = (map) => many(map.labels.length, map.what.slice(0, -1));

  function heat(into, map, bands) {
    const { cells, who, worst } = cellsOf(map);
    const end = map.t0_ms + map.columns * map.cell_ms;
    const left = (ms) => `left:${(100 * (ms - map.t0_ms)) / (end - map.t0_ms)}%`;
    const canvas = el("canvas", { width: map.columns, height: map.rows });
    const mark = el("div", { class: "mark", hidden: "" });
    const label = `${map.about}: ${rowsOf(map)} over time`;
    const keys = "arrow keys go from cell to cell, and the worst are listed below";
    const box = el(
      "div",
      { class: "cells", tabindex: "0", role: "img", "aria-label": `${label}; ${keys}` },
      canvas,
      mark,
    );
    const tip = el(
      "p",
      { class: "tip", role: "status" },
      "Point at a cell, or go from cell to cell with the arrow keys.",
    );
    const rows = Math.min(6, map.rows);
    const names = Array.from({ length: rows }, (_, i) => {
      const row = rows === map.rows ? i : Math.round((i * (map.rows - 1)) / (rows - 1));
      const name = nameOf(map, row, 0);
      const short = name.replace(/^(.*rank \d+) .*$/, "$1");
      return el("span", { style: `top:${(100 * (row + 0.5)) / map.rows}%`, title: name }, short);
    });
    const ticks = el("div", { class: "ticks" });
    const inside = bands.filter((b) => b.from < end && b.to > map.t0_ms);
    const strip = inside.map((b) => {
      const from = Math.max(b.from, map.t0_ms),
        share = (100 * (Math.min(b.to, end) - from)) / (end - map.t0_ms);
      return el("i", { style: `${left(from)};width:max(3px,${share}%)`, title: b.name });
    });
    into.append(
      scaleOf(map),
      el(
        "div",
        { class: "heat" },
        el("span", { class: "gutter soft" }, strip.length ? "incidents" : ""),
        el("div", { class: "strip" }, strip),
        el("div", { class: "names" }, names),
        box,
        el("span", { class: "gutter" }),
        ticks,
      ),
      el("p", { class: "soft small" }, sizeOf(map)),
      tip,
    );
    box.style.height = `${Math.min(520, Math.max(48, map.rows * (map.rows <= 16 ? 20 : map.rows <= 128 ? 4 : 2)))}px`;
    const paint = () => {
      drawCells(canvas, map, cells);
      const seconds = (end - map.t0_ms) / 1e3,
        most = Math.max(2, box.clientWidth / 80);
      const step = STEPS_S.find((s) => seconds / s <= most) || STEPS_S[STEPS_S.length - 1];
      ticks.replaceChildren();
      for (let s = Math.ceil(map.t0_ms / 1e3 / step) * step; s <= end / 1e3 - 0.03 * seconds; s += step) {
        ticks.append(el("span", { style: left(s * 1e3) }, tick(s, step)));
      }
    };
    let place = null;
    const show = (row, column) => {
      place = [row, column];
      mark.hidden = false;
      const across = `left:${(100 * column) / map.columns}%;width:${100 / map.columns}%`;
      mark.style.cssText = `${across};top:${(100 * row) / map.rows}%;height:${100 / map.rows}%`;
      const cell = row * map.columns + column,
        isKnown = cells[cell] !== 255;
      const others = map.group > 1 && !isKnown ? ` and ${map.group - 1} more` : "";
      const name = `${nameOf(map, row, who && isKnown ? who[cell] : 0)}${others}`;
      const told = isKnown ? valueOf(map, cells[cell]) : "nothing known";
      tip.textContent = `${moment(map.t0_ms + column * map.cell_ms)}  ${name}: ${told}`;
    };
    box.addEventListener("pointermove", (event) => {
      const { left, top, width, height } = box.getBoundingClientRect();
      const row = Math.floor(((event.clientY - top) / height) * map.rows);
      const column = Math.floor(((event.clientX - left) / width) * map.columns);
      if (row >= 0 && column >= 0 && row < map.rows && column < map.columns) show(row, column);
    });
    box.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!by) return;
      const [row, column] = place || worst[0]?.at || [0, 0],
        clip = (n, count) => Math.min(count - 1, Math.max(0, n));
      show(place ? clip(row + by[0], map.rows) : row, place ? clip(column + by[1], map.columns) : column);
      event.preventDefault();
    });
    paint();
    painted = { box, paint };
    return worst;
  }

  function sizeOf(map) {
    const lines = map.group > 1 ? `, ${map.group} to a line` : "";
    return `${rowsOf(map)}${lines}; a column is ${number(map.cell_ms / 1000)} s. A cell shows the worst of what falls into it.`;
  }

  function scaleOf(map) {
    const bar = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
    const context = bar.getContext("2d"),
      strip = context.createImageData(256, 1);
    for (let i = 0; i < 256; i++) strip.data.set([...ramp(i / 255), 255], 4 * i);
    context.putImageData(strip, 0, 0);
    const [calm, alarming] = map.worst === "low" ? [map.high, map.low] : [map.low, map.high];
    return el(
      "div",
      { class: "scale" },
      el("span", {}, map.about),
      el("span", {}, said(map, calm)),
      bar,
      el("span", {}, ended(map, said(map, alarming))),
      el("span", { class: "none" }, map.what === "ranks" ? "no training step known" : "nothing known"),
    );
  }

  function drawCells(canvas, map, cells) {
    if (!map.rows || !map.columns) return;
    const context = canvas.getContext("2d"),
      image = context.createImageData(map.columns, map.rows);
    const none = Lines.style("--none")
      .match(/[0-9a-f]{2}/gi)
      .map((hex) => parseInt(hex, 16));
    // Bytes lie red first, so that a number has them last first.
    const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    const colour = (value) => (value === 255 ? none : ramp(map.worst === "low" ? 1 - value / 254 : value / 254));
    const colours = Uint32Array.from({ length: 256 }, (_, value) => packed(colour(value)));
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < cells.length; i++) pixels[i] = colours[cells[i]];
    context.putImageData(image, 0, 0);
  }

  // Which rows stand out: by how many of their cells are in the upper half of the scale, with their longest run of such.
  function worst(map, cells, who) {
    const found = new Map(),
      known = new Uint16Array(map.rows),
      isLow = map.worst === "low";
    for (let row = 0; row < map.rows; row++)
      for (let column = 0; column < map.columns; column++) {
        const value = cells[row * map.columns + column],
          alarm = isLow ? 254 - value : value;
        if (value === 255) continue;
        known[row]++;
        if (alarm < 127) continue;
        const index = row * map.group + (who ? who[row * map.columns + column] : 0);
        let one = found.get(index);
        if (!one) {
          one = { count: 0, peak: 0, from: column, last: column, best: [column, column], at: [row, column] };
          found.set(index, one);
        }
        // A column or two in between do not end a run.
        if (column - one.last > 3) one.from = column;
        one.last = column;
        if (column - one.from > one.best[1] - one.best[0]) one.best = [one.from, column];
        one.count++;
        if (alarm > one.peak) {
          one.peak = alarm;
          one.at = [row, column];
        }
      }
    const ranked = [...found].sort((a, b) => b[1].count - a[1].count);
    const most = ranked.length ? ranked[0][1].count : 0;
    return ranked
      .filter(([, one]) => one.count * 5 >= most)
      .slice(0, 8)
      .map(([index, one]) => ({
        label: map.labels[Math.min(index, map.labels.length - 1)],
        share: one.count / known[one.at[0]],
        peak: valueOf(map, isLow ? 254 - one.peak : one.peak),
        from: map.t0_ms + one.best[0] * map.cell_ms,
        to: map.t0_ms + (one.best[1] + 1) * map.cell_ms,
        at: one.at,
      }));
  }

  const again = () => {
    if (painted && painted.box.isConnected) painted.paint();
  };
  return { heat, again };
})();
