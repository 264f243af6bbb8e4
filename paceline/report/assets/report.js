"use strict";
// Fills the page from its data. Texts are set as text throughout.
(() => {
  const { lines, heat, el, clock, day, number } = Charts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const span = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
  const words = (text) => String(text).replaceAll("_", " ");
  const raw = new Set(data.raw.map((r) => r.id));
  const cited = (ids) => ids.map((id, i) => [i ? ", " : "", raw.has(id) ? el("a", { href: `#${id}` }, id.replace("raw-", "")) : el("span", { class: "soft" }, id.replace("raw-", ""))]).flat();
  const table = (heads, rows) => el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col", class: h.n ? "n" : "" }, h.t)))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: [heads[i].n ? "n" : "", heads[i].id ? "id" : ""].join(" ").trim() }, cell)))))));

  // --- Head and summary
  const about = data.about, sum = data.summary;
  at("source").textContent = `/ ${about.source}`;
  at("site").textContent = about.site === "replay" ? "" : `of ${about.site}`;
  at("span").textContent = `${day(about.from_ms)} ${clock(about.from_ms)} to ${day(about.to_ms) === day(about.from_ms) ? "" : `${day(about.to_ms)} `}${clock(about.to_ms)} UTC (${span(sum.span_s)}). Policy: ${about.policies.join(", ")}. ${about.is_recorded ? "Findings, incidents and commands are shown as they were recorded." : "Only inputs were recorded: findings, incidents and commands come from a replay."} paceline ${about.paceline}.`;
  if (about.unusable) at("notices").append(el("p", { class: "notice" }, `${about.unusable} records of the archive could not be used and are left out: ${about.unusable_lines.join("; ")}`));
  const ordered = Object.values(sum.commands).reduce((a, b) => a + b, 0);
  const cards = [
    [sum.incidents, sum.incidents === 1 ? "incident" : "incidents"], [sum.blamed, sum.blamed === 1 ? "culprit named" : "culprits named"], [ordered, ordered === 1 ? "command" : "commands"],
    [sum.gpu_hours_lost === null ? "none known" : number(sum.gpu_hours_lost), "GPU-hours lost"], ...(sum.money_lost === null ? [] : [[number(sum.money_lost), "lost, in money"]]),
    [number(sum.gpus), "GPUs in jobs"], [number(sum.steps), "steps"], [sum.silent, "sources that fell silent"]];
  at("cards").append(...cards.map(([value, name]) => el("div", { class: "card" }, el("b", {}, String(value)), el("span", {}, name))));
  at("sentences").append(...sum.sentences.map((text) => el("p", {}, text)));
  at("briefs").append(...data.incidents.map((i) => {
    const acts = i.commands.map((c) => `${words(c.kind)} ${c.when} (${c.mode === "observe" ? "said, not carried out" : c.mode}${c.results.length ? `; ${c.results.map((r) => r.outcome).join(", ")}` : ""})`);
    const first = i.commands.length ? ` ${number((Math.min(...i.commands.map((c) => c.decided_ms)) - i.onset_ms) / 1000)} s after it began:` : "";
    return el("li", {}, el("a", { href: `#${i.id}` }, el("b", {}, words(i.class))), ` at ${clock(i.onset_ms)}: ${i.summary}. `, i.culprit ? `It comes from ${i.culprit}. ` : "Nobody is to blame. ", i.gpu_hours_lost ? `It cost ${number(i.gpu_hours_lost)} GPU-hours. ` : "", acts.length ? `Ordered${first} ${acts.join("; ")}.` : "No act was ordered.");
  }));

  // --- Steps
  const bandsOf = (wanted) => {
    const merged = [];
    for (const i of data.incidents.filter(wanted)) {
      const [from, to] = [i.onset_ms / 1000, (i.end_ms || about.to_ms) / 1000], last = merged[merged.length - 1];
      if (last && from <= last[1]) last[1] = Math.max(last[1], to); else merged.push([from, to]);
    }
    return merged;
  };
  if (!data.jobs.length) at("jobs").append(el("p", { class: "soft" }, "There are no steps in the archive."));
  data.jobs.forEach((job) => {
    const left = el("div"), right = el("div");
    at("jobs").append(el("h3", {}, `${job.job_id}: ${job.steps.toLocaleString("en")} steps${job.bin > 1 ? `, the worst of ${job.bin} to a point` : ""}`), el("div", { class: "two" }, left, right));
    const sync = `job-${job.job_id}`, bands = bandsOf((i) => i.job_id === null || i.job_id === job.job_id);
    lines(left, { title: "Step time, and the own time within it", unit: "s", at: job.at, sync, bands, floor: 0, height: 230, series: [
      { label: "step", values: job.step_s, colour: "--soft" }, { label: "own time of the slowest rank", values: job.slowest_s, colour: "--bad" }, { label: "own time, median", values: job.median_s, colour: "--own" }] });
    if (job.mfu.some((v) => v !== null)) lines(left, { title: "Model FLOP utilisation", unit: "%", at: job.at, sync, bands, floor: 0, height: 150, series: [{ label: "MFU", values: job.mfu.map((v) => (v === null ? null : v * 100)), colour: "--own" }] });
    if (job.missing.some((v) => v > 0)) lines(left, { title: "Ranks that did not report", unit: "ranks", at: job.at, sync, bands, floor: 0, height: 110, series: [{ label: "missing", values: job.missing, colour: "--warn" }] });
    right.append(el("h4", {}, "Slowest ranks"), job.slowest.length ? table([{ t: "rank", n: true }, { t: "was slowest in", n: true }, { t: "at most", n: true }, { t: "where" }], job.slowest.map((s) => [String(s.rank), `${s.count} steps`, `${s.worst}x`, s.where.split(" ")[0]])) : el("p", { class: "soft" }, "No rank was slower than its peers by 5 %."));
  });

  // --- Maps
  const show = (index) => {
    [...at("heat-choice").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    at("heat").replaceChildren();
    const found = heat(at("heat"), data.heats[index]);
    at("heat").append(found.length ? table([{ t: "stands out" }, { t: "cells in the upper half of the scale", n: true }, { t: "from" }, { t: "to" }], found.map((w) => [w.label, String(w.cells), clock(w.from), clock(w.to)])) : el("p", { class: "soft" }, "No row stands out."));
  };
  data.heats.forEach((map, i) => at("heat-choice").append(el("button", { type: "button", "aria-pressed": "false", onclick: () => show(i) }, map.name)));
  if (data.heats.length) show(0); else at("heat").append(el("p", { class: "soft" }, "There is nothing to draw."));

  // --- Incidents
  if (!data.incidents.length) at("incident-list").append(el("p", { class: "soft" }, "None."));
  data.incidents.forEach((i) => {
    const body = el("div", {}, el("p", {}, i.summary), i.advice ? el("p", {}, el("b", {}, "What to look at: "), i.advice) : null,
      el("p", { class: "soft" }, `${i.id}${i.slowdown ? `; slower by a factor of ${number(i.slowdown)}` : ""}${i.gpu_hours_lost ? `; ${number(i.gpu_hours_lost)} GPU-hours lost` : ""}${i.explained ? `; explains ${i.explained} further findings` : ""}`),
      el("h3", {}, "What was known when"),
      table([{ t: "what" }, { t: "happened" }, { t: "at the brokers" }, { t: "after it began", n: true }], i.known.map((k) => [words(k.what), clock(k.event_ms, 1), clock(k.arrived_ms, 1), `${number(((k.arrived_ms || k.event_ms) - i.onset_ms) / 1000)} s`])));
    if (i.commands.length) body.append(el("h3", {}, "Commands and what came of them"), table([{ t: "command" }, { t: "target" }, { t: "reason" }, { t: "result" }, { t: "rests on", id: true }], i.commands.map((c) => [`${words(c.kind)} ${c.when} (${c.mode})`, c.target, c.reason, c.results.length ? c.results.map((r) => `${r.outcome} ${clock(r.event_ms)} ${r.reason}`).join("; ") : "none recorded", cited(c.evidence)])));
    if (i.findings.length) body.append(el("h3", {}, "Findings that it rests on"), findingTable(i.findings));
    at("incident-list").append(el("details", { id: i.id, open: data.incidents.length <= 6 ? "" : null }, el("summary", {}, `${words(i.class)} `, el("span", { class: `tag ${i.state === "resolved" ? "resolved" : "open"}` }, i.state), ` ${i.culprit || "nobody to blame"}, ${clock(i.onset_ms)}${i.end_ms ? ` to ${clock(i.end_ms)}` : ""}`), body));
  });

  function findingRow(f) {
    return el("tr", {}, el("td", {}, clock(f.event_ms, 1)), el("td", {}, el("span", { class: `tag ${f.severity}` }, f.severity)), el("td", {}, `${words(f.kind)}${f.state === "cleared" ? " cleared" : ""}`), el("td", {}, f.about), el("td", {}, f.text), el("td", { class: "id" }, cited(f.evidence)));
  }
  function findingTable(rows) {
    return el("div", { class: "wide" }, el("table", {}, findingHead(), el("tbody", {}, rows.map(findingRow))));
  }
  function findingHead() {
    return el("thead", {}, el("tr", {}, ["at", "severity", "what", "who", "why", "rests on"].map((t) => el("th", { scope: "col" }, t))));
  }

  // --- Devices
  if (!data.devices.length) at("lanes").append(el("p", { class: "soft" }, "No device was named, or none has telemetry in the archive."));
  data.devices.forEach((device, d) => {
    at("lanes").append(el("h3", {}, device.name));
    const bands = bandsOf((i) => i.culprit === device.name);
    device.series.forEach((s) => lines(at("lanes"), { title: s.label, unit: s.unit, at: s.at, sync: `device-${d}`, bands, height: 120, series: [{ label: s.label, values: s.values, colour: s.label === "temperature" ? "--bad" : "--own" }] }));
  });

  // --- Findings
  const page = 50;
  let shown = page;
  const fill = () => {
    const wanted = at("filter").value.trim().toLowerCase();
    const rows = wanted ? data.findings.filter((f) => `${f.kind} ${words(f.kind)} ${f.about} ${f.text} ${f.id} ${f.severity} ${f.state}`.toLowerCase().includes(wanted)) : data.findings;
    at("finding-table").replaceChildren(findingHead(), el("tbody", {}, rows.slice(0, shown).map(findingRow)));
    at("finding-count").textContent = `${Math.min(shown, rows.length)} of ${rows.length.toLocaleString("en")}${data.findings_total > data.findings.length ? ` (${data.findings_total.toLocaleString("en")} in the archive; the lightest are left out)` : ""}`;
    at("more").hidden = rows.length <= shown;
  };
  at("filter").addEventListener("input", () => { shown = page; fill(); });
  at("more").addEventListener("click", () => { shown += 5 * page; fill(); });
  fill();

  // --- Silence
  const silences = data.silences;
  at("silences").append(silences.total ? el("p", { class: "soft" }, `${silences.total} times a source was not heard for more than 30 s${silences.total > silences.rows.length ? `; the longest ${silences.rows.length} are shown` : ""}. What a silent source would have said is unknown: that is not the same as healthy.`) : el("p", {}, "Nobody: every source was heard at least every 30 s."));
  if (silences.rows.length) at("silences").append(table([{ t: "source" }, { t: "stream" }, { t: "last heard" }, { t: "heard again" }, { t: "for", n: true }], silences.rows.map((s) => [s.source, words(s.stream), clock(s.from_ms), s.to_ms ? clock(s.to_ms) : "not in the archive", span(((s.to_ms || about.to_ms) - s.from_ms) / 1000)])));

  // --- Raw records: their texts are put in when one is opened
  at("raw-note").textContent = data.raw.length ? `${data.raw.length.toLocaleString("en")} records that findings and commands rest on, as they were recorded.` : "None is cited.";
  data.raw.forEach((r) => {
    const holder = el("div"), block = el("details", { id: r.id, ontoggle: () => { if (block.open && !holder.firstChild) holder.append(el("pre", {}, r.json)); } }, el("summary", {}, `${r.place}, arrived ${clock(r.arrived_ms, 1)}`), holder);
    at("raw-list").append(block);
  });
  const open = () => {
    const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  open();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
