"use strict";
// What was said: incidents with what was known when, commands with their results, findings, and the raw records under all.
const Statements = (() => {
  const { el, at, soft, place, time, tag, words, whole, many, amount, times, number, span, moment } = Page;
  const { table, folded, unfold, part } = Page;
  let raw = new Map();

  // --- Commands
  const order = (c) => `${words(c.kind)}${c.when === "now" ? "" : ` ${c.when}`}`;
  const outcome = (c) => {
    if (c.results.length) return c.results.map((r, i) => [i ? " " : "", tag(r.outcome, r.outcome)]);
    if (c.mode === "observe") return tag("only-said", "only said");
    return tag("waits", c.mode === "approve" ? "waits for consent" : "no result");
  };
  const cited = (ids) =>
    ids.map((id, i) => {
      const name = id.replace(/^raw-(.*)-(\d+)-(\d+)$/, "$1 $2/$3");
      const gone = { class: "soft", title: "not in the archive, or left out" };
      return [i ? el("br") : "", raw.has(id) ? el("a", { href: `#${id}` }, name) : el("span", gone, name)];
    });
  function commandTable(commands) {
    const heads = ["Command", "On", "Why", "Result", { t: "Rests on", id: true }];
    const came = (c) =>
      c.results.length
        ? c.results.map((r) => el("p", {}, tag(r.outcome, r.outcome), ` ${moment(r.event_ms)} ${r.reason}`))
        : [outcome(c), c.held.map((why) => el("p", { class: "soft" }, `held: ${why}`))];
    return table(
      heads,
      commands.map((c) => [
        [
          order(c),
          el("div", { class: "soft small" }, c.approved_by ? `approved by ${c.approved_by}` : `mode ${c.mode}`),
        ],
        place(c.on, c.target),
        c.reason,
        came(c),
        cited(c.evidence),
      ]),
      { class: "stack" },
    );
  }

  // --- Incidents
  const after = (ms, i) => {
    const s = (ms - i.onset_ms) / 1000;
    return el(
      "span",
      { class: "soft time" },
      Math.abs(s) < 0.05 ? "" : ` ${s < 0 ? "\u2212" : "+"}${span(Math.abs(s))}`,
    );
  };
  const when = (ms, i) => (ms === null ? "" : [time(moment(ms, 1)), after(ms, i)]);
  const pace = ({ pace: p }) => {
    if (!p) return null;
    const own = `${number(p.own_s)} s of its own time a step against ${number(p.median_s)} s of the median rank`;
    return `slowest in ${whole(p.slowest_in)} of ${many(p.steps, "step")}, with ${own}`;
  };
  function incidentBody(i) {
    const facts = [
      i.culprit && `it comes from ${i.culprit}`,
      i.slowdown && `slower by ${times(i.slowdown)}`,
      pace(i),
      i.gpu_hours_lost && `${amount(i.gpu_hours_lost)} GPU-hours lost`,
      i.explained && `explains ${many(i.explained, "further finding")}`,
      i.id,
    ];
    const heads = ["What", "In words", "Happened", "At the brokers"];
    const known = i.known.map((k) => [words(k.what), k.text, when(k.event_ms, i), when(k.arrived_ms, i)]);
    const acts = [el("h3", {}, "Commands and what came of them"), commandTable(i.commands)];
    return [
      el("p", {}, i.summary),
      i.advice ? el("p", {}, el("b", {}, "What to look at: "), i.advice) : null,
      el("p", { class: "soft small" }, facts.filter(Boolean).join("; ")),
      el("h3", {}, "What was known when"),
      table(heads, known, { class: "stack" }),
      i.commands.length ? acts : soft("No act was ordered."),
      i.findings.length ? [el("h3", {}, "Findings that it rests on"), findingTable(i.findings)] : null,
    ];
  }
  function incidents(into, rows) {
    if (!rows.length) into.append(soft("None."));
    rows.forEach((i) => {
      const fill = (body) => body.append(...incidentBody(i).flat(3).filter(Boolean));
      const until = i.end_ms ? ` to ${moment(i.end_ms)}` : "";
      const about = `${i.who || "no device or node blamed"}, ${moment(i.onset_ms)}${until}`;
      const head = [`${words(i.class)} `, tag(i.state, i.state), ` ${about}`];
      const block = folded(head, fill, { id: i.id });
      if (rows.length <= 6) unfold(block);
      into.append(block);
    });
    // On paper nothing can be opened.
    addEventListener("beforeprint", () => into.querySelectorAll("details").forEach(unfold));
  }

  // --- Findings
  const HEADS = ["At", "Severity", "What", "Who", "Why", { t: "Rests on", id: true }];
  const findingCells = (f) => [
    [
      time(moment(f.event_ms, 1)),
      f.arrived_ms ? el("div", { class: "soft small" }, `at the brokers ${moment(f.arrived_ms, 1)}`) : "",
    ],
    tag(f.severity, f.severity),
    `${words(f.kind)}${f.state === "cleared" ? " cleared" : ""}`,
    place(f.who, f.about),
    f.text,
    cited(f.evidence),
  ];
  const findingTable = (rows) => table(HEADS, rows.map(findingCells), { class: "stack" });
  function findings(into, data) {
    const page = 50,
      severities = new Set();
    let shown = page;
    into.className = "stack";
    // Put together once, when somebody first looks for something.
    const searched = new Map();
    const searchedIn = (f) => {
      if (!searched.has(f)) {
        const parts = [f.kind, words(f.kind), f.who, f.about, f.text, f.id, f.severity, f.state];
        searched.set(f, parts.join(" ").toLowerCase());
      }
      return searched.get(f);
    };
    const isWanted = (f, text) =>
      (!severities.size || severities.has(f.severity)) && (!text || searchedIn(f).includes(text));
    const fill = () => {
      const text = at("filter").value.trim().toLowerCase(),
        rows = data.findings.filter((f) => isWanted(f, text));
      into.replaceChildren(...findingTable(rows.slice(0, shown)).firstChild.childNodes);
      const isCut = data.findings_total > data.findings.length;
      const cut = isCut ? ` (${whole(data.findings_total)} in the archive; the lightest are left out)` : "";
      at("finding-count").textContent = `${whole(Math.min(shown, rows.length))} of ${whole(rows.length)}${cut}`;
      at("more").hidden = rows.length <= shown;
    };
    const again = () => {
      shown = page;
      fill();
    };
    ["critical", "warning", "info"].forEach((severity) => {
      const count = data.findings.filter((f) => f.severity === severity).length;
      if (!count) return;
      const button = el(
        "button",
        {
          type: "button",
          "aria-pressed": "false",
          onclick: () => {
            if (!severities.delete(severity)) severities.add(severity);
            button.setAttribute("aria-pressed", String(severities.has(severity)));
            again();
          },
        },
        `${whole(count)} ${severity}`,
      );
      at("severities").append(button);
    });
    at("filter").addEventListener("input", again);
    at("more").addEventListener("click", () => {
      shown += 5 * page;
      fill();
    });
    fill();
  }

  // --- Raw records: made when somebody looks, or follows a link to one
  function readable(text) {
    try {
      const value = JSON.parse(text);
      return Object.entries(value)
        .map(([name, one]) => `${name}: ${JSON.stringify(one)}`)
        .join("\n");
    } catch {
      return text;
    }
  }
  function rawRecords(into, rows) {
    const first = 20,
      block = (r) => {
        const fill = (body) => body.append(el("pre", {}, readable(r.json)));
        return folded(`${r.place}, arrived ${moment(r.arrived_ms, 1)}`, fill, { id: r.id });
      };
    const note = `${many(rows.length, "record")} that findings and commands rest on, as recorded.`;
    at("raw-note").textContent = rows.length ? note : "None is cited.";
    const called = el("div"),
      list = el("div");
    into.append(called, list);
    rows.slice(0, first).forEach((r) => list.append(block(r)));
    if (rows.length > first) {
      const more = el(
        "button",
        {
          type: "button",
          onclick: () => {
            more.remove();
            rows.slice(first).forEach((r) => {
              if (!at(r.id)) list.append(block(r));
            });
          },
        },
        `Show all ${whole(rows.length)}`,
      );
      into.append(more);
    }
    const open = () => {
      const id = decodeURIComponent(location.hash.slice(1));
      if (!at(id) && raw.has(id)) called.append(block(raw.get(id)));
      const target = id && at(id);
      if (!target || target.tagName !== "DETAILS") return;
      target.open = true;
      target.scrollIntoView();
      target.firstChild.focus({ preventScroll: true });
    };
    addEventListener("hashchange", open);
    open();
  }

  function fill(data) {
    part("incident-list", (into) => incidents(into, data.incidents));
    part("finding-table", (into) => findings(into, data));
    part("raw-list", (into) => rawRecords(into, data.raw));
  }
  const setRaw = (rows) => {
    raw = new Map(rows.map((r) => [r.id, r]));
  };
  return { order, outcome, pace, fill, setRaw };
})();
