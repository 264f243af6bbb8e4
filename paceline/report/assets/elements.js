"use strict";
// Elements and words of the page. Texts are set as text throughout: nothing of an archive becomes markup.
const Page = (() => {
  const el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
    return made;
  };
  const at = (id) => document.getElementById(id);
  const soft = (...text) => el("p", { class: "soft" }, ...text);
  // A place by its short name, with the whole one; only one of usual length is kept on one line.
  const place = (text, whole) => el("span", { class: text.length < 40 ? "who" : null, title: whole }, text);
  // A time or a span of it, kept on one line.
  const time = (text) => el("span", { class: "time" }, text);
  const tag = (kind, text) => el("span", { class: `tag ${kind}` }, text);
  const words = (text) => String(text).replaceAll("_", " ");
  const many = (count, one, more = `${one}s`) => `${whole(count)} ${count === 1 ? one : more}`;

  // --- Numbers
  const whole = (value) => Math.round(value).toLocaleString("en");
  const number = (value) => {
    if (value === null || value === undefined) return "";
    return Math.abs(value) >= 1000 ? whole(value) : String(+value.toPrecision(3));
  };
  // Costs: as many digits as somebody would say.
  const amount = (value) => {
    if (value >= 100) return whole(value);
    if (value > 0 && value < 0.01) return "less than 0.01";
    return value.toFixed(value >= 10 ? 1 : 2);
  };
  const times = (value) => `${value.toFixed(2)}\u00d7`;
  const span = (seconds) => {
    if (seconds < 9.95) return `${+seconds.toFixed(1)} s`;
    if (seconds < 119.5) return `${Math.round(seconds)} s`;
    if (seconds < 599.5) {
      const all = Math.round(seconds);
      return `${Math.floor(all / 60)} min${all % 60 ? ` ${all % 60} s` : ""}`;
    }
    if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
    return `${+(seconds / 3600).toFixed(1)} h`;
  };

  // --- Times, in UTC. Where an archive is of more than a day, a time alone would not say which.
  const pad = (n, width = 2) => String(n).padStart(width, "0");
  const day = (ms) => new Date(ms).toISOString().slice(0, 10);
  const clock = (ms, digits = 0) => {
    const then = new Date(ms);
    const seconds = `${pad(then.getUTCHours())}:${pad(then.getUTCMinutes())}:${pad(then.getUTCSeconds())}`;
    return digits ? `${seconds}.${pad(then.getUTCMilliseconds(), 3).slice(0, digits)}` : seconds;
  };
  let isLong = false;
  const setSpan = (from, to) => {
    isLong = to - from > 86_400_000;
  };
  const moment = (ms, digits = 0) =>
    ms === null || ms === undefined ? "" : `${isLong ? `${day(ms).slice(5)} ` : ""}${clock(ms, digits)}`;
  const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const STEPS_S = STEPS.concat([2, 5, 10, 20, 50].map((days) => days * 86_400));
  const tick = (s, step) => {
    if (step >= 86_400 || (isLong && s % 86_400 === 0)) return day(s * 1e3).slice(5);
    return step >= 60 ? clock(s * 1e3).slice(0, 5) : clock(s * 1e3);
  };

  // --- Tables: a head is a text, or { t: text, n: is a number, id: is an id }.
  const table = (heads, rows, attributes = {}) => {
    const known = heads.map((head) => (typeof head === "string" ? { t: head } : head));
    const kind = (head) => (head.n ? "n" : head.id ? "id" : null);
    const body = rows.map((row) =>
      el(
        "tr",
        {},
        row.map((cell, i) => el("td", { class: kind(known[i]), "data-head": known[i].t }, cell)),
      ),
    );
    return el(
      "div",
      { class: "wide" },
      el(
        "table",
        attributes,
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            known.map((head) => el("th", { scope: "col", class: kind(head) }, head.t)),
          ),
        ),
        el("tbody", {}, body),
      ),
    );
  };
  // The first rows, and the others when somebody asks for them.
  const paged = (rows, first, draw) => {
    const holder = el("div");
    const fill = (count) => {
      holder.replaceChildren(draw(rows.slice(0, count)));
      if (rows.length > count) {
        const text = `Show all ${whole(rows.length)}`;
        holder.append(el("p", {}, el("button", { type: "button", onclick: () => fill(rows.length) }, text)));
      }
    };
    fill(first);
    return holder;
  };
  // A block that is filled when it is first opened.
  const folded = (head, fill, attributes = {}) => {
    const body = el("div");
    const ontoggle = () => {
      if (block.open && !body.firstChild) fill(body);
    };
    const block = el("details", { ...attributes, ontoggle }, el("summary", {}, head), body);
    return block;
  };
  // Opened by the page, a block is filled at once.
  const unfold = (block) => {
    block.open = true;
    block.dispatchEvent(new Event("toggle"));
  };
  // A part that cannot be drawn says so, and costs the others nothing.
  const part = (id, draw) => {
    try {
      draw(at(id));
    } catch (error) {
      at(id).append(el("p", { class: "notice" }, `This part could not be drawn: ${error}`));
      setTimeout(() => {
        throw error;
      });
    }
  };
  return {
    el,
    at,
    soft,
    place,
    time,
    tag,
    words,
    many,
    whole,
    number,
    amount,
    times,
    span,
    day,
    clock,
    setSpan,
    moment,
    tick,
    STEPS_S,
    table,
    paged,
    folded,
    unfold,
    part,
  };
})();
