"use strict";
// Fills the page from its data: head, timelines, maps, lanes, silences; summary and statements have files of their own.
(() => {
  const { el, at, soft, time, words, many, whole, number, times, span, day, clock, moment } = Page;
  const { table, paged, folded, part } = Page;
  const data = JSON.parse(at("data").textContent);
  const { about, summary: sum } = data;
  Page.setSpan(about.from_ms, about.to_ms);
  Lines.setSpan(about.from_ms, about.to_ms);
  Statements.setRaw(data.raw);
  const endOf = (i) => i.end_ms || about.to_ms;

  // --- Light and dark: as the system has it, until somebody chooses.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  let isChosen = false;
  const again = (width) => {
    Lines.again(width);
    Heat.again();
  };
  const setTheme = (name) => {
    root.dataset.theme = name;
    const other = name === "dark" ? "light" : "dark";
    at("theme").textContent = other[0].toUpperCase() + other.slice(1);
    at("theme").setAttribute("aria-label", `Show in ${other} colours`);
    again();
  };
  const follow = () => {
    if (!isChosen) setTheme(system.matches ? "dark" : "light");
  };
  system.addEventListener("change", follow);
  at("theme").addEventListener("click", () => {
    isChosen = true;
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });
  follow();

  // --- Paper is light, and as wide as a page.
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    again(680);
  });
  addEventListener("afterprint", () => setTheme(before));
  let width = innerWidth,
    due = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(due);
    due = setTimeout(again, 150);
  });

  // --- Head
  const recorded = "Findings, incidents and commands are shown as they were recorded.";
  const replayed =
    "Only inputs were recorded: findings, incidents and commands are what a replay makes of them; none was sent.";
  const lastDay = day(about.to_ms) === day(about.from_ms) ? "" : `${day(about.to_ms)} `;
  const until = `${lastDay}${clock(about.to_ms)} UTC (${span(sum.span_s)})`;
  at("source").textContent = `/ ${about.source}`;
  at("site").textContent = about.site === "replay" ? "" : `of ${about.site}`;
  at("span").textContent = `${day(about.from_ms)} ${clock(about.from_ms)} to ${until}`;
  at("origin").textContent =
    `${about.is_recorded ? recorded : replayed} Policy: ${about.policies.join(", ")}. paceline ${about.paceline}.`;
  if (about.unusable) {
    const text = `${many(about.unusable, "record")} of the archive could not be used and are left out: `;
    at("notices").append(el("p", { class: "notice" }, text, about.unusable_lines.join("; ")));
  }
  Summary.fill(data);

  // --- Steps
  const bandsOf = (wanted) => {
    const merged = [];
    for (const i of data.incidents.filter(wanted)) {
      const [from, to] = [i.onset_ms / 1000, endOf(i) / 1000],
        last = merged[merged.length - 1];
      if (last && from <= last[1]) last[1] = Math.max(last[1], to);
      else merged.push([from, to]);
    }
    return merged;
  };
  part("jobs", (into) => {
    if (!data.jobs.length) into.append(soft("There are no steps in the archive."));
    data.jobs.forEach((job, n) => {
      const bins = job.bin > 1 ? `, the worst of ${job.bin} to a point` : "";
      const others = job.others ? `; ${many(job.others, "step")} of other phases (warm-up, checkpoints) left out` : "";
      const title = `${job.job_id}: ${many(job.steps, "training step")}${bins}${others}`;
      if (n < 4) {
        into.append(el("h3", {}, title));
        jobCharts(into, job);
        return;
      }
      // Charts of many jobs are drawn when somebody looks.
      into.append(folded(title, (body) => jobCharts(body, job)));
    });
    const rest = data.jobs_total - data.jobs.length;
    if (rest > 0) into.append(soft(`${many(rest, "further job")} left out.`));
  });

  function jobCharts(into, job) {
    const left = el("div"),
      right = el("div");
    into.append(el("div", { class: "two" }, left, right));
    const bands = bandsOf((i) => i.job_id === null || i.job_id === job.job_id);
    const draw = (title, unit, height, series) =>
      Lines.lines(left, { title, unit, at: job.at, bands, floor: 0, height, series });
    draw("Step time", "s", 210, [
      { label: "step", values: job.step_s, colour: "--soft" },
      { label: "own time, slowest rank", values: job.slowest_s, colour: "--bad" },
      { label: "own time, median", values: job.median_s, colour: "--own" },
    ]);
    if (job.mfu.some((v) => v !== null)) {
      const share = job.mfu.map((v) => (v === null ? null : v * 100));
      draw("Model FLOP utilisation", "%", 130, [{ label: "MFU", values: share, colour: "--own" }]);
    } else left.append(soft("MFU is not known: the model's shape or the part's peak is not."));
    if (job.missing.some((v) => v > 0)) {
      draw("Ranks that did not report", "", 110, [{ label: "missing", values: job.missing, colour: "--warn" }]);
    }
    right.append(el("h4", {}, "Slowest ranks"));
    if (!job.slowest.length) return right.append(soft("No rank was slower than its peers by 5 %."));
    const share = (count) => `${whole(count)} (${number(Math.round((1000 * count) / job.steps) / 10)} %)`;
    const heads = [{ t: "Rank", n: true }, { t: "Slowest in", n: true }, { t: "At most", n: true }, "Node"];
    const rows = job.slowest.map((s) => [String(s.rank), share(s.count), times(s.worst), s.where]);
    const rest = job.slowest_total - job.slowest.length;
    right.append(table(heads, rows));
    if (rest > 0) right.append(el("p", { class: "soft small" }, `${many(rest, "further rank")} less often.`));
  }

  // --- Maps
  part("heat", (into) => {
    const marks = data.incidents.map((i) => ({
      from: i.onset_ms,
      to: endOf(i),
      name: `${words(i.class)}: ${i.who || "nobody blamed"}`,
    }));
    const buttons = data.heats.map((map, i) =>
      el("button", { type: "button", "aria-pressed": "false", onclick: () => show(i) }, map.name),
    );
    const show = (index) => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
      into.replaceChildren();
      const found = Heat.heat(into, data.heats[index], marks);
      const heads = ["Stands out", { t: "Share of time", n: true }, { t: "At worst", n: true }, "Longest: from", "to"];
      const rows = found.map((w) => [
        w.label,
        `${Math.max(1, Math.round(100 * w.share))} %`,
        w.peak,
        time(moment(w.from)),
        time(moment(w.to)),
      ]);
      into.append(rows.length ? table(heads, rows, { class: "stack" }) : soft("Nothing stands out."));
    };
    at("heat-choice").append(...buttons);
    if (data.heats.length) show(0);
    else into.append(soft("There is nothing to draw."));
  });

  // --- Devices
  part("lanes", (into) => {
    if (!data.devices.length) into.append(soft("No device was named, or none has telemetry in the archive."));
    const grid = el("div", { class: "devices" });
    into.append(grid);
    for (const device of data.devices) {
      const lanes = el("div", { class: "lanes" }),
        bands = bandsOf((i) => i.culprit === device.name);
      const wide = `--lanes:${Math.min(3, device.charts.length)}`;
      grid.append(el("div", { class: "device", style: wide }, el("h3", { title: device.name }, device.short), lanes));
      for (const { title, unit, at, lines } of device.charts) {
        const colours = unit === "\u00b0C" ? ["--bad"] : ["--own", "--bad"];
        const series = lines.map((line, i) => ({ ...line, colour: colours[i] }));
        Lines.lines(lanes, { title, unit, at, bands, height: 130, floor: unit === "/s" ? 0 : undefined, series });
      }
    }
    const rest = data.devices_total - data.devices.length;
    if (rest > 0) into.append(soft(`${many(rest, "further device")} with warnings left out; the maps have all.`));
  });

  // --- Silence
  part("silences", (into) => {
    const { total, rows } = data.silences;
    if (!total) return into.append(el("p", {}, "Nobody: every source was heard at least every 30 s."));
    const cut = total > rows.length ? `; the longest ${whole(rows.length)} are shown` : "";
    const caution = "What a silent source would have said is unknown: that is not the same as healthy.";
    into.append(soft(`${whole(total)} times a source was not heard for more than 30 s${cut}. ${caution}`));
    const heads = ["Source", "Stream", "Last heard", "Heard again", { t: "For", n: true }];
    const row = (s) => {
      const heard = s.to_ms ? time(moment(s.to_ms)) : "not in the archive";
      return [s.source, words(s.stream), time(moment(s.from_ms)), heard, span(((s.to_ms || about.to_ms) - s.from_ms) / 1000)];
    };
    into.append(paged(rows, 15, (some) => table(heads, some.map(row), { class: "stack" })));
  });

  Statements.fill(data);
  // After the frame in which all of it is drawn.
  requestAnimationFrame(() =>
    setTimeout(() => {
      root.dataset.ready = String(Math.round(performance.now()));
    }),
  );
})();
