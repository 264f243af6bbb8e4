"use strict";
// Lines over time by uPlot: one axis of time for all, colours of the page, drawn anew when they or the width change.
const Lines = (() => {
  const { el, number, tick, moment, STEPS_S } = Page;
  // What is drawn, with where: what has left the page is drawn no more.
  const drawn = [];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let whole = [0, 1];
  const setSpan = (fromMs, toMs) => {
    whole = [fromMs / 1e3, toMs / 1e3];
  };

  // What is not known for long is drawn as a gap: a job that stands still makes no steps, and no line through them.
  const gapOf = (at) => {
    const apart = at
      .slice(1)
      .map((x, i) => x - at[i])
      .sort((a, b) => a - b);
    return apart.length ? Math.max(8 * apart[apart.length >> 1], (whole[1] - whole[0]) / 200) : Infinity;
  };
  const withGaps = (at, columns) => {
    const places = columns[0].map((_, i) => i).filter((i) => columns.some((values) => values[i] !== null));
    const gap = gapOf(places.map((i) => at[i]));
    const xs = [],
      ys = columns.map(() => []);
    const put = (x, i) => {
      xs.push(x);
      columns.forEach((values, c) => ys[c].push(i === null ? null : values[i]));
    };
    if (!places.length || whole[0] < at[places[0]]) put(whole[0], null);
    places.forEach((i, n) => {
      if (n && at[i] - at[places[n - 1]] > gap) put((at[i] + at[places[n - 1]]) / 2, null);
      put(at[i], i);
    });
    if (places.length && whole[1] > at[places[places.length - 1]]) put(whole[1], null);
    return { data: [xs, ...ys], gap };
  };

  function lines(into, options) {
    const holder = el("div", {
      class: options.series.length > 1 ? "lane" : "lane single",
      tabindex: "0",
      role: "group",
      "aria-label": `${options.title}, a chart: left and right move, plus and minus look closer, Escape shows all`,
    });
    into.append(holder);
    const { data, gap } = withGaps(
      options.at,
      options.series.map((s) => s.values),
    );
    // A null within a line is passed over unless it lasts.
    const gaps = (u, series, from, to, nulls) => {
      const pixels = (gap / (u.scales.x.max - u.scales.x.min)) * u.bbox.width;
      return nulls.filter(([left, right]) => right - left > pixels);
    };
    const told = (u, v) => (v === null || v === undefined ? "" : `${number(v)} ${options.unit}`);
    const fit = (u, low, high) => {
      if (low === null) return [0, 1];
      const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
      return [options.floor === undefined ? low - room : Math.min(low, options.floor), high + room];
    };
    let plot = null;
    const draw = (width) => {
      const range = plot ? [plot.scales.x.min, plot.scales.x.max] : null;
      if (plot) plot.destroy();
      const quiet = { stroke: style("--line"), width: 0.5 };
      const axis = { stroke: style("--soft"), grid: quiet, ticks: quiet, font: "12px system-ui, sans-serif" };
      plot = new uPlot(
        {
          title: options.unit ? `${options.title} (${options.unit})` : options.title,
          width: width || Math.max(260, holder.clientWidth),
          height: options.height,
          padding: [8, 20, 0, 0],
          tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
          cursor: { sync: { key: "time" }, y: false },
          scales: { x: { time: true }, y: { range: fit } },
          axes: [
            {
              ...axis,
              space: 64,
              incrs: STEPS_S,
              size: 30,
              values: (u, at, i, s, step) => at.map((x) => tick(x, step)),
            },
            { ...axis, space: 26, size: 50, values: (u, at) => at.map(number) },
          ],
          series: [{ label: "at", value: (u, at) => (at ? moment(at * 1e3) : "") }].concat(
            options.series.map((s) => ({
              label: s.label,
              stroke: style(s.colour),
              width: 1.5,
              spanGaps: false,
              gaps,
              points: { show: false },
              value: told,
            })),
          ),
          hooks: { drawClear: [(u) => shade(u, options.bands || [])] },
        },
        data,
        holder,
      );
      if (range && range[0] !== null) plot.setScale("x", { min: range[0], max: range[1] });
    };
    draw();
    holder.addEventListener("keydown", (event) => steer(event, plot));
    drawn.push({ holder, draw, plot: () => plot });
  }

  const there = () => drawn.filter((one) => one.holder.isConnected);
  const showAll = (min, max) => there().forEach((one) => one.plot().setScale("x", { min, max }));

  // By keys what the mouse can do.
  function steer(event, plot) {
    const xs = plot.data[0],
      { min, max } = plot.scales.x;
    const here = plot.cursor.idx ?? xs.findIndex((x) => x >= (min + max) / 2);
    const middle = xs[here] ?? (min + max) / 2;
    const move = (by) => {
      const to = Math.min(xs.length - 1, Math.max(0, here + by));
      plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: 10 });
    };
    const zoom = (factor) =>
      showAll(
        Math.max(whole[0], middle - (middle - min) * factor),
        Math.min(whole[1], middle + (max - middle) * factor),
      );
    const acts = {
      ArrowLeft: () => move(-1),
      ArrowRight: () => move(1),
      "+": () => zoom(0.5),
      "-": () => zoom(2),
      Escape: () => showAll(...whole),
    };
    if (!acts[event.key]) return;
    acts[event.key]();
    event.preventDefault();
  }

  function shade(u, bands) {
    const context = u.ctx,
      { left, top, width, height } = u.bbox;
    context.save();
    context.fillStyle = style("--shade");
    for (const [from, to] of bands) {
      const begin = Math.max(left, u.valToPos(from, "x", true)),
        end = Math.min(left + width, u.valToPos(to, "x", true));
      if (end > begin) context.fillRect(begin, top, Math.max(2, end - begin), height);
    }
    context.restore();
  }

  // What is in sight is drawn at once, the rest one by one: a change of colours answers as soon as it is seen. Paper has all.
  const again = (width) => {
    const isSeen = ({ top, bottom }) => width || (bottom > 0 && top < innerHeight);
    const all = there().map((one) => ({ one, now: isSeen(one.holder.getBoundingClientRect()) }));
    const late = all.filter(({ now }) => !now);
    const next = () => {
      if (!late.length) return;
      late.shift().one.draw();
      setTimeout(next);
    };
    all.filter(({ now }) => now).forEach(({ one }) => one.draw(width));
    setTimeout(next);
  };
  return { lines, setSpan, again, style };
})();
