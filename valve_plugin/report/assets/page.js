// All of the page's behaviour. Text that came from a model or a repository is only ever set as textContent.
"use strict";

let attempts;  // parsed when first asked for: a page of a long run holds megabytes of them
const make = (tag, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};

// --- theme: the system's, until somebody chooses
const theme = document.getElementById("theme");
const dark = () => document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const nameTheme = () => { theme.textContent = dark() ? "Light theme" : "Dark theme"; };
theme.hidden = false;
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  nameTheme();
});
nameTheme();

// --- attempts: one dialog for all
const dialog = document.getElementById("attempt");
// Text that may break after underscores: names have no blanks.
const named = (element, text) => {
  element.replaceChildren(...text.split(/(?<=_)(?!_)/).flatMap((part) => [part, make("wbr")]));
  return element;
};
const fact = (list, name, value) => {
  if (value === "" || value === undefined || (Array.isArray(value) && !value.length)) return;
  list.append(make("dt", name), named(make("dd"), Array.isArray(value) ? value.join(", ") : String(value)));
};
const section = (title, text) => {
  const part = make("details");
  part.open = true;
  part.append(make("summary", title), make("pre", text));
  return part;
};
// A patch with what it adds and what it takes away told apart.
const patch = (text) => {
  const part = section("Patch", "");
  for (const [line] of text.matchAll(/.*\n?/g)) {
    const kind = /^(\+\+\+|---) /.test(line) ? "" : { "+": "added", "-": "removed", "@": "soft" }[line[0]];
    part.lastChild.append(kind ? make("span", line, kind) : line);
  }
  return part;
};
const describe = (id, place, ids) => {
  attempts ??= JSON.parse(document.getElementById("attempts").textContent);
  const a = attempts[id];
  const part = make("section");
  if (!a) {
    part.append(make("p", "This machine keeps no attempt here: only its outcome is in the ledger.", "note"));
    return part;
  }
  const nth = ids.length > 1 ? `${place + 1} of ${ids.length}: ` : "";
  part.append(make("h3", `${nth}attempt ${a.ordinal + 1}, ${{ resolved: "passed", unresolved: "failed" }[a.outcome] ?? a.outcome}`));
  const list = make("dl", undefined, "facts");
  fact(list, "why", a.reason);
  fact(list, "check", a.check);
  fact(list, "model", a.model);
  fact(list, "model calls", a.steps);
  fact(list, "seconds", a.seconds);
  if (a.usd) fact(list, "cost", `$${a.usd}`);
  fact(list, "injected notes", a.injected);
  fact(list, "test edits dropped", a.dropped);
  part.append(list);
  if (a.printed) part.append(section("Check, its last lines", a.printed));
  const told = ids.slice(0, place).some((other) => attempts[other]?.task === a.task);  // once for all attempts at it
  const task = told ? "" : section("Task", a.task);
  if (a.trajectory === undefined) {
    part.append(make("p", "Patch and trajectory are kept beside the bank; the page had no room for them.", "note"), task);
  } else {
    const same = a.patch ? ids.slice(0, place).findIndex((other) => attempts[other]?.patch === a.patch) : -1;
    if (same >= 0) part.append(make("p", `Patch: the same as that of ${same + 1} of ${ids.length}.`, "note"));
    else part.append(patch(a.patch || "(empty)"));
    part.append(task, section("Trajectory, shortened", a.trajectory));
  }
  return part;
};
const [back, on] = dialog.querySelectorAll("button[data-move]");
const heading = dialog.querySelector("h2");
let shown, beside = [];  // the button whose attempts are shown, and all of its section that can be seen
const show = (button) => {
  shown = button;
  const body = dialog.querySelector("div");
  body.replaceChildren(...button.dataset.attempts.split(" ").map(describe));
  dialog.scrollTop = 0;
  named(heading, button.dataset.title ?? button.ariaLabel);
  const place = beside.indexOf(button);
  back.disabled = place <= 0;
  on.disabled = place + 1 >= beside.length;
};
// The `close` event comes later, when a key may already have moved the focus on.
const leave = (event) => {
  event.preventDefault();
  dialog.close();
  shown.focus();
};
dialog.addEventListener("click", (event) => { if (event.target === dialog) leave(event); });
dialog.addEventListener("submit", leave);
for (const [button, way] of [[back, -1], [on, 1]]) {
  button.addEventListener("click", () => {
    show(beside[beside.indexOf(shown) + way]);
    if (button.disabled) heading.focus();
  });
}
dialog.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return leave(event);
  const button = { ArrowLeft: back, ArrowRight: on }[event.key];
  if (!button || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  button.click();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-attempts]");
  if (!button) return;
  beside = [...button.closest("section").querySelectorAll("button[data-attempts]")].filter((b) => b.checkVisibility());
  dialog.showModal();
  heading.focus();  // on a button, Space would press it where a reader means to scroll
  show(button);
});

// --- heatmaps: one tab stop each, arrows move
const beyond = (cell, key) => {  // the next button in an arrow's direction
  const step = key === "ArrowLeft" || key === "ArrowUp" ? "previousElementSibling" : "nextElementSibling";
  if (key === "ArrowLeft" || key === "ArrowRight") {
    for (let next = cell[step]; next; next = next[step]) if (next.matches(":has(button)")) return next.firstChild;
  } else {
    for (let row = cell.parentElement[step]; row; row = row[step]) {
      const next = row.cells[cell.cellIndex].querySelector("button");
      if (next) return next;
    }
  }
};
for (const grid of document.querySelectorAll(".heat table")) {
  let stop = grid.querySelector("td button");
  if (!stop) continue;
  stop.tabIndex = 0;
  grid.addEventListener("focusin", (event) => {
    if (!event.target.matches("td button")) return;
    stop.tabIndex = -1;
    stop = event.target;
    stop.tabIndex = 0;
  });
  grid.addEventListener("keydown", (event) => {
    const at = event.target.closest("td button");
    if (!at) return;
    let next;
    if (event.key === "Home" || event.key === "End") {
      next = [...(event.ctrlKey ? grid : at.closest("tr")).querySelectorAll("td button")].at(event.key === "Home" ? 0 : -1);
    } else if (event.key.startsWith("Arrow")) {
      next = beyond(at.parentElement, event.key) ?? at;
    } else return;
    event.preventDefault();
    next.focus();
  });
}

// --- on narrow screens a row of these tables is a small list: each cell is told its column's name
const label = (table) => {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  for (const row of table.querySelectorAll(":is(tbody, tfoot) tr")) {
    let column = 0;
    for (const cell of row.cells) {
      if (cell.colSpan === 1) cell.dataset.label = `${heads[column].replace(/\.$/, "")}:`;
      column += cell.colSpan;
    }
  }
  table.classList.add("labelled");
};

// --- a box of a table is a tab stop while it scrolls
const boxes = new ResizeObserver((resized) => {
  for (const { target } of resized) {
    const scrolls = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight;
    if (scrolls) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of document.querySelectorAll(".scroll")) boxes.observe(box);

// --- search and filters: each list names what it filters
const filtered = [];  // each list with what empties its form
for (const form of document.querySelectorAll("form[data-for]")) {
  const list = document.getElementById(form.dataset.for);
  const parts = [...list.querySelectorAll("[data-row]")];
  let texts;
  const count = form.querySelector("output");
  const apply = () => {
    texts ??= parts.map((part) => part.textContent.toLowerCase());
    const words = form.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...form.querySelectorAll("select")].filter((s) => s.value);
    if (words.length || wanted.length) for (const part of list.querySelectorAll(".fold")) part.open = true;
    let shown = 0;
    parts.forEach((part, i) => {
      const fits = wanted.every((s) => part.dataset[s.name] === s.value) && words.every((w) => texts[i].includes(w));
      part.hidden = !fits;
      shown += fits;
    });
    const tried = [words.length && "fewer or other words", wanted.length && "“all” in the filters"].filter(Boolean);
    count.textContent = `${shown} of ${parts.length}${shown || !tried.length ? "" : `: nothing fits; try ${tried.join(", or ")}`}`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filtered.push([list, () => { form.reset(); apply(); }]);
}

// --- on a phone what is long begins folded
const phone = matchMedia("screen and (max-width: 40rem)");
const fit = () => {
  for (const part of document.querySelectorAll("details.fold")) part.open = !phone.matches;
  if (phone.matches) for (const table of document.querySelectorAll("table.stack:not(.labelled)")) label(table);
};
phone.addEventListener("change", fit);
fit();

// --- the menu marks the section that is read: the one a reader went to for as long as it stands where the link put it,
// or as near to it as the end of the page allows
const places = [...document.querySelectorAll("nav a")].map((link) => [link, document.querySelector(link.hash)]);
let chosen;
const mark = () => {
  const end = innerHeight + scrollY + 2 > document.documentElement.scrollHeight;
  const begun = ([, part]) => part.getBoundingClientRect().top < innerHeight / 3;
  const { top, bottom } = chosen?.[1].getBoundingClientRect() ?? {};
  const stands = end ? bottom > 0 : top >= 0 && begun(chosen);
  const read = stands ? chosen : places.findLast((place) => end || begun(place)) ?? places[0];
  for (const place of places) {
    if (place === read) place[0].setAttribute("aria-current", "true");
    else place[0].removeAttribute("aria-current");
  }
};
document.addEventListener("scroll", mark, { passive: true });
mark();

// --- a link opens the closed parts it leads into, and shows what a filter hides
const reveal = (hash) => {
  const target = document.getElementById(hash.slice(1));
  const hidden = target?.closest("[hidden]");
  for (const [list, clear] of filtered) if (hidden && list.contains(target)) clear();
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (hidden) target.scrollIntoView();
};
const settle = (target, frames) => {  // what comes into view on the way takes another height than was guessed
  target?.scrollIntoView();
  if (frames) requestAnimationFrame(() => settle(target, frames - 1));
  else mark();
};
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  chosen = places.find((place) => place[0] === link);
  reveal(link.hash);  // at a second click the address does not change
  requestAnimationFrame(() => settle(document.getElementById(link.hash.slice(1)), 3));
});
addEventListener("hashchange", () => reveal(location.hash));
reveal(location.hash);

// --- printing opens what a reader of paper needs, and closes it again: of one run also the bank's items. Raw ledger
// lines take many pages, and the words say it all
const PAPER = "#overview details, #certificates details, .fold, body:not(.two) :is(#item-list [data-state=accepted], "
  + "#item-list [data-state=taken])";
let printed = [];
addEventListener("beforeprint", () => {
  printed = [...document.querySelectorAll(PAPER)].filter((part) => !part.open);
  for (const part of printed) part.open = true;
});
addEventListener("afterprint", () => { for (const part of printed.splice(0)) part.open = false; });
