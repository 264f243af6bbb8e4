"use strict";
// The answer in front: who did it, since when, what it cost, what was done; or that there was nothing.
const Summary = (() => {
  const { el, soft, time, words, many, whole, amount, times, span, moment, table, paged, part } = Page;
  const place = (i) => (i.who ? Page.place(i.who, i.culprit) : "no device or node");
  const lasted = (i) => (i.end_ms ? span((i.end_ms - i.onset_ms) / 1000) : "goes on");
  const acts = (i) => {
    if (!i.commands.length) return "nothing was ordered";
    const told = i.commands.map((c) => el("li", {}, Statements.order(c), " ", Statements.outcome(c)));
    return el("ul", { class: "acts" }, told);
  };

  function verdict(into, data) {
    const { summary: sum } = data;
    const first = data.incidents.find((i) => i.id === sum.weightiest);
    if (!first) return into.append(nothing(data));
    const which = first.gpu_hours_lost ? "The costliest" : "One";
    const title =
      sum.incidents === 1 ? "One incident, its cause: " : `${which} of ${sum.incidents} incidents, its cause: `;
    const until = first.end_ms ? `for ${lasted(first)}; it is over` : "and it still goes on where the archive ends";
    const price = sum.price && first.gpu_hours_lost ? `, ${amount(first.gpu_hours_lost * sum.price)} in money` : "";
    const job = first.job_id ? ` of ${first.job_id}` : "";
    const rows = [
      ["Who", first.who ? [el("b", {}, place(first)), job] : `No device or node${job} is blamed.`],
      ["Why", first.summary],
      ["In numbers", Statements.pace(first)],
      ["Since when", `${moment(first.onset_ms)}, ${until}`],
      ["What it cost", first.gpu_hours_lost ? `${amount(first.gpu_hours_lost)} GPU-hours${price}` : "not known"],
      ["What was done", acts(first)],
    ].filter(([, told]) => told);
    const head = el("p", {}, title, el("a", { href: `#${first.id}` }, words(first.class)));
    const list = el(
      "dl",
      {},
      rows.map(([name, told]) => [el("dt", {}, name), el("dd", {}, told)]),
    );
    into.append(el("div", { class: "verdict" }, head, list));
  }

  function nothing({ summary: sum, findings_total: found }) {
    const size = [sum.gpus && many(sum.gpus, "GPU"), sum.steps && many(sum.steps, "step"), many(sum.nodes, "node")];
    const noted = found
      ? `${many(found, "finding")} ${found === 1 ? "was" : "were"} noted below, and none became an incident.`
      : "There is not a single finding.";
    const silent = ` But ${many(sum.silent, "source")} fell silent: what they would have said is not known.`;
    const text = `In ${span(sum.span_s)}, ${size.filter(Boolean).join(", ")}: ${noted}${sum.silent ? silent : ""}`;
    const head = el("p", {}, "Nothing was found that has a cause and needs an act.");
    return el("div", { class: `verdict ${sum.silent ? "unsure" : "calm"}` }, head, el("p", {}, text));
  }

  function cards(into, { summary: sum }) {
    const card = (value, name, more) =>
      into.append(el("div", { class: "card" }, el("b", {}, value), name, el("small", {}, more)));
    const named = (count, one, more) => (count === 1 ? one : more);
    const over = sum.going_on ? `${whole(sum.going_on)} not over` : "all over";
    const blamed = sum.incidents ? `${whole(sum.blamed)} with a culprit, ${over}` : "nobody to blame";
    card(whole(sum.incidents), named(sum.incidents, "incident", "incidents"), blamed);
    const each = sum.price ? `, at ${amount(sum.price)} each` : "";
    const money = sum.money_lost === null ? "price not known" : `${amount(sum.money_lost)} in money${each}`;
    if (sum.gpu_hours_lost !== null) card(amount(sum.gpu_hours_lost), "GPU-hours lost", money);
    else if (sum.incidents) card("unknown", "cost", "no incident states GPU-hours");
    else card("0", "GPU-hours lost", "nobody waited for a slow one");
    const ordered = Object.values(sum.commands).reduce((a, b) => a + b, 0);
    const came = `${whole(sum.results.applied || 0)} carried out, ${whole(sum.said_only)} only said`;
    card(whole(ordered), named(ordered, "command", "commands"), ordered ? came : "nothing was ordered");
    const size = [many(sum.jobs, "job"), many(sum.steps, "step"), many(sum.nodes, "node")];
    card(whole(sum.gpus), "GPUs in jobs", size.join(", "));
    card(whole(sum.silent), "fell silent", sum.silent ? "sources, for more than 30 s" : "every source was heard");
  }

  function briefs(into, { incidents, summary: sum }) {
    if (incidents.length < 2) return;
    const hours = { t: "GPU-hours", n: true };
    const heads = ["Cause", "Who", "Began", "Lasted", { t: "Slower by", n: true }, hours, "What was done"];
    const row = (i) => [
      el("a", { href: `#${i.id}` }, words(i.class)),
      [place(i), i.who ? null : el("div", { class: "soft small" }, i.summary)],
      time(moment(i.onset_ms)),
      time(lasted(i)),
      i.slowdown ? times(i.slowdown) : "",
      i.gpu_hours_lost ? amount(i.gpu_hours_lost) : "",
      acts(i),
    ];
    const draw = (rows) => table(heads, rows.map(row), { class: "stack" });
    into.append(el("h3", {}, "All incidents"), paged(incidents, 12, draw));
    const cut = `${whole(incidents.length)} of ${whole(sum.incidents)} incidents are shown`;
    if (sum.incidents > incidents.length) into.append(soft(`${cut}: those that cost most and those without an end.`));
  }

  function sentences(into, { summary: sum }) {
    const most = 8,
      rest = sum.sentences.length - most;
    into.append(...sum.sentences.slice(0, most).map((text) => el("p", {}, text)));
    if (rest > 0) into.append(el("p", {}, `And ${many(rest, "further job")}.`));
  }

  const fill = (data) => {
    for (const [id, draw] of Object.entries({ verdict, cards, briefs, sentences }))
      part(id, (into) => draw(into, data));
  };
  return { fill };
})();
