"use strict";
(function () {
  const data = JSON.parse(document.getElementById("samples-data").textContent);
  const home = document.getElementById("browse");
  const ROWS = 40, KEPT = 6, HEAD = 2500, TAIL = 1500, DENSE = 0.3, MOST_COLUMNS = 300;
  const WORDS = { r: "right", w: "wrong", u: "undecided", n: "unscored", g: "graded" };
  const SAID = { r: "right", w: "wrong", u: "undecided", n: "no score", g: "graded" };
  const at = (id) => document.getElementById("f-" + id);
  const control = { search: at("search"), arm: at("arm"), step: at("step"), show: at("show"), code: at("code"), order: at("order") };
  const table = at("table"), status = at("status"), detail = at("detail");
  let first = 0, opened = null, hits = null, searched = "", job = 0, shownRows = [], timer = 0;

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const count = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");
  const percent = (a, n) => (n ? Math.round((100 * a) / n) + " %" : "");

  // ---- the data: cells by problem, counts of their completions

  const columns = data.columns.map(([arm, step], index) => ({ arm, step, index }));
  const cells = data.cells.map(([problem, column, codes, entry, mean], index) => {
    const cell = { problem, column, codes, entry, mean, index, n: codes.length, right: 0, cut: 0 };
    for (const code of codes) {
      const lower = code.toLowerCase();
      if (lower === "r") cell.right += 1;
      if (lower !== code) cell.cut += 1;
    }
    return cell;
  });
  const problems = data.problems.map(([name, about, gold, entry], index) => ({ name, about, gold, entry, index, cells: [] }));
  const owners = new Map();
  problems.forEach((problem) => owners.set(problem.entry, problem));
  cells.forEach((cell) => {
    problems[cell.problem].cells.push(cell);
    owners.set(cell.entry, cell);
  });
  const label = (column) => [data.arms.length > 1 || column.step === null ? data.arms[column.arm] : "", column.step === null ? "" : "step " + column.step]
    .filter(Boolean).join(", ");
  const said = (cell) => label(columns[cell.column]) + ": " + (cell.mean === null ? cell.right + " of " + cell.n + " right" : count(cell.n, "completion") + ", mean score " + cell.mean)
    + (cell.cut ? ", " + cell.cut + " cut" : "");

  // ---- texts: entries in parts, embedded or loaded as scripts from the folder beside the page

  const parts = new Map(), waiting = new Map();
  if (data.texts) parts.set(0, data.texts);
  window.sageRlvrTexts = function (id, number, entries) {
    const asked = waiting.get(number);
    if (!asked) return;
    waiting.delete(number);
    if (id !== data.id) asked.fail("the texts in " + data.folder + "/ belong to another page; run browse again");
    else {
      parts.set(number, entries);
      if (parts.size > KEPT && !data.texts) parts.delete(parts.keys().next().value);
      asked.done(entries);
    }
  };
  function part(number) {
    if (parts.has(number)) return Promise.resolve(parts.get(number));
    if (waiting.has(number)) return waiting.get(number).promise;
    const asked = {};
    asked.promise = new Promise((done, fail) => { asked.done = done; asked.fail = fail; });
    waiting.set(number, asked);
    const script = document.createElement("script");
    script.src = encodeURIComponent(data.folder) + "/" + String(number).padStart(4, "0") + ".js";
    script.onload = () => script.remove();
    script.onerror = () => {
      waiting.delete(number);
      script.remove();
      asked.fail(script.getAttribute("src") + " cannot be loaded; keep the folder " + data.folder + "/ beside the page");
    };
    document.head.append(script);
    return asked.promise;
  }
  function partOf(entry) {
    let low = 0, high = data.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.starts[middle] <= entry) low = middle;
      else high = middle - 1;
    }
    return low;
  }
  const texts = (entry) => part(partOf(entry)).then((entries) => entries[entry - data.starts[partOf(entry)]]);

  // ---- choice of problems and columns

  const chosen = (column) => (control.arm.value === "" || column.arm === Number(control.arm.value)) &&
    (control.step.value === "" || String(column.step) === control.step.value);
  function fits(code) {
    const want = control.code.value;
    if (want === "") return true;
    return want === "cut" ? code !== code.toLowerCase() : code.toLowerCase() === want;
  }
  const visible = (problem) => problem.cells.filter((cell) => chosen(columns[cell.column]) && (!hits || hits.cells.has(cell.index) || hits.problems.has(cell.problem)) &&
    [...cell.codes].some(fits));
  const share = (cell) => cell.right / cell.n;
  function change(own) {
    const byArm = new Map();
    own.forEach((cell) => byArm.set(columns[cell.column].arm, [...(byArm.get(columns[cell.column].arm) || []), cell]));
    const ends = [...byArm.values()].map((some) => [share(some[0]), share(some[some.length - 1])]);
    return byArm.size > 1 && ends.every(([a, b]) => a === b) ? [ends[0][0], ends[ends.length - 1][1]] : ends.sort((x, y) => Math.abs(y[1] - y[0]) - Math.abs(x[1] - x[0]))[0];
  }
  function shows(own) {
    const right = own.reduce((sum, cell) => sum + cell.right, 0), n = own.reduce((sum, cell) => sum + cell.n, 0);
    const [before, after] = change(own);
    return { "": true, mixed: right > 0 && right < n, none: right === 0, every: right === n, gained: before === 0 && after > 0, lost: before > 0 && after === 0 }[control.show.value];
  }
  function chosenRows() {
    const want = control.search.value.toLowerCase();
    const kept = [];
    problems.forEach((problem) => {
      if (want && !hits && !(problem.name + "\n" + problem.about + "\n" + problem.gold).toLowerCase().includes(want)) return;
      const own = visible(problem);
      if (own.length && shows(own)) kept.push({ problem, own });
    });
    const key = { few: mean, many: (own) => -mean(own), change: (own) => -Math.abs(change(own)[1] - change(own)[0]) }[control.order.value];
    if (key) kept.forEach((row) => { row.key = key(row.own); });
    return key ? kept.sort((a, b) => a.key - b.key || a.problem.index - b.problem.index) : kept;
  }
  const mean = (own) => own.reduce((sum, cell) => sum + cell.right, 0) / own.reduce((sum, cell) => sum + cell.n, 0);

  // ---- the table

  function button(cell, withLabel) {
    const made = element("button", "cell" + (hits && hits.cells.has(cell.index) ? " hit" : ""));
    made.type = "button";
    made.tabIndex = -1;
    made.id = "cell-" + cell.index;
    if (withLabel) made.append(element("small", "", label(columns[cell.column]) + " "));
    made.append(cell.mean === null ? cell.right + "/" + cell.n : String(cell.mean));
    made.setAttribute("aria-label", said(cell) + (hits && hits.cells.has(cell.index) ? ", found" : ""));
    const green = (100 * (cell.mean === null ? share(cell) : Math.max(0, Math.min(1, cell.mean)))).toFixed(1) + "%";
    const cut = 100 - (100 * Math.min(cell.cut, cell.n - cell.right)) / cell.n + "%";
    const striped = cell.cut ? ", repeating-linear-gradient(90deg, var(--ink) 0 2px, var(--cd55e00) 2px 5px)" : ", linear-gradient(var(--cd55e00), var(--cd55e00))";
    made.style.backgroundImage = "linear-gradient(90deg, var(--c009e73) " + green + ", transparent " + green + ")" +
      ", linear-gradient(90deg, var(--cd55e00) " + cut + ", transparent " + cut + ")" + striped;
    if (opened === cell) made.setAttribute("aria-current", "true");
    made.addEventListener("click", () => { open(cell, true); });
    made.addEventListener("focus", () => { table.querySelectorAll(".cell").forEach((one) => { one.tabIndex = one === made ? 0 : -1; }); });
    return made;
  }
  function heading(problem) {
    const made = element("th");
    made.scope = "row";
    if (problem.name) made.append(element("b", "", problem.name));
    if (problem.about) made.append(element("span", "", problem.about));
    if (problem.gold) made.append(element("span", "", "gold " + problem.gold));
    return made;
  }
  function header(text, span) {
    const made = element("th", "", text);
    made.scope = span ? "colgroup" : "col";
    if (span) made.colSpan = span;
    return made;
  }
  function draw() {
    const rows = chosenRows();
    first = Math.max(0, Math.min(first, Math.floor((rows.length - 1) / ROWS) * ROWS));
    const used = new Set(rows.flatMap((row) => row.own.map((cell) => cell.column)));
    const shown = columns.filter((column) => used.has(column.index));
    const filled = rows.reduce((sum, row) => sum + row.own.length, 0);
    const dense = shown.length <= MOST_COLUMNS && filled >= DENSE * rows.length * shown.length;
    table.textContent = "";
    table.append(element("caption", "quiet", "problems " + (rows.length ? first + 1 : 0) + " to " + Math.min(first + ROWS, rows.length) + " of " + rows.length.toLocaleString("en")));
    const head = element("thead"), body = element("tbody");
    head.append(element("tr"));
    head.lastChild.append(header("problem"));
    if (dense) {
      const arms = [...new Set(shown.map((column) => column.arm))];
      if (arms.length > 1 && shown.some((column) => column.step !== null)) {
        arms.forEach((arm) => head.lastChild.append(header(data.arms[arm], shown.filter((column) => column.arm === arm).length)));
        head.append(element("tr"));
        head.lastChild.append(header(""));
      }
      shown.forEach((column) => head.lastChild.append(header(column.step === null ? data.arms[column.arm] : "step " + column.step)));
      const total = element("tr", "share");
      total.append(element("th", "", "right, all of these problems"));
      total.firstChild.scope = "row";
      const sums = new Map(shown.map((column) => [column.index, [0, 0]]));
      rows.forEach((row) => row.own.forEach((cell) => { const sum = sums.get(cell.column); sum[0] += cell.right; sum[1] += cell.n; }));
      shown.forEach((column) => total.append(element("td", "", percent(...sums.get(column.index)))));
      body.append(total);
    } else head.lastChild.append(header("completions that are right, by step"));
    shownRows = rows.slice(first, first + ROWS).map(({ problem, own }) => {
      const row = element("tr"), buttons = [];
      row.append(heading(problem));
      if (dense) {
        const byColumn = new Map(own.map((cell) => [cell.column, cell]));
        shown.forEach((column) => {
          const place = element("td"), cell = byColumn.get(column.index);
          buttons.push(cell ? button(cell, false) : null);
          if (cell) place.append(buttons[buttons.length - 1]);
          row.append(place);
        });
      } else {
        const place = element("td"), list = element("ul");
        own.forEach((cell) => { const item = element("li"); buttons.push(button(cell, true)); item.append(buttons[buttons.length - 1]); list.append(item); });
        place.append(list);
        row.append(place);
      }
      body.append(row);
      return buttons;
    });
    table.append(head, body);
    const start = table.querySelector(".cell[aria-current]") || table.querySelector(".cell");
    if (start) start.tabIndex = 0;
    at("before").disabled = first === 0;
    at("after").disabled = first + ROWS >= rows.length;
    tell(rows, filled);
  }
  function tell(rows, filled) {
    let n = 0, right = 0, cut = 0;
    rows.forEach((row) => row.own.forEach((cell) => { n += cell.n; right += cell.right; cut += cell.cut; }));
    const found = hits ? ", " + count(hits.completions, "completion") + " with “" + searched + "”" : "";
    const more = control.search.value && !hits ? "; Enter searches prompts and completions too" : "";
    status.textContent = count(rows.length, "problem") + " of " + problems.length.toLocaleString("en") + ", " + count(n, "completion") + ", " + (percent(right, n) || "none") + " right" +
      (data.cut ? ", " + percent(cut, n) + " cut" : ", no file says which were cut") + found + more;
  }

  // ---- one cell: the prompt and its completions

  const plain = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) =>
    ("\n\t\u200c\u200d\u00ad".includes(c) ? c : "[U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "]"));
  function written(text) {
    const made = element("pre", "sample-text"), clean = plain(text);
    made.tabIndex = -1;
    const fill = (whole) => {
      made.textContent = "";
      const cut = whole || clean.length <= HEAD + TAIL + 500;
      marked(made, cut ? clean : clean.slice(0, HEAD));
      if (cut) return;
      const more = element("button", "", "show " + (clean.length - HEAD - TAIL).toLocaleString("en") + " more characters here");
      more.type = "button";
      more.addEventListener("click", () => { fill(true); made.focus(); });
      made.append("\n", more, "\n");
      marked(made, clean.slice(-TAIL));
    };
    fill(Boolean(searched && hits && clean.toLowerCase().slice(HEAD, -TAIL).includes(searched)));
    return made;
  }
  function marked(box, text) {
    const lower = text.toLowerCase();
    let from = 0;
    while (hits && searched && lower.length === text.length) {
      const next = lower.indexOf(searched, from);
      if (next < 0) break;
      box.append(text.slice(from, next), element("mark", "", text.slice(next, next + searched.length)));
      from = next + searched.length;
    }
    box.append(text.slice(from));
  }
  function step(text, cell) {
    const made = element("button", "", text);
    made.type = "button";
    made.disabled = !cell;
    if (cell) made.addEventListener("click", () => { reveal(cell); open(cell, true); });
    return made;
  }
  function neighbours(cell) {
    const rows = chosenRows(), place = rows.findIndex((row) => row.problem.index === cell.problem);
    const own = place < 0 ? [] : rows[place].own, i = own.indexOf(cell);
    const near = (row) => row && (row.own.find((one) => one.column === cell.column) || row.own[0]);
    return { before: near(rows[place - 1]), after: place < 0 ? null : near(rows[place + 1]), earlier: own[i - 1], later: i < 0 ? null : own[i + 1] };
  }
  function reveal(cell) {
    const place = chosenRows().findIndex((row) => row.problem.index === cell.problem);
    if (place >= 0) first = Math.floor(place / ROWS) * ROWS;
    opened = cell;
    draw();
  }
  function open(cell, focus) {
    opened = cell;
    table.querySelectorAll(".cell").forEach((one) => { if (one.id === "cell-" + cell.index) one.setAttribute("aria-current", "true"); else one.removeAttribute("aria-current"); });
    const problem = problems[cell.problem];
    Promise.all([texts(problem.entry), texts(cell.entry)]).then(([asked, rows]) => {
      if (opened === cell) fillDetail(cell, problem, asked, rows, focus);
    }).catch(failed);
  }
  function failed(why) {
    detail.textContent = "";
    detail.append(element("p", "", String(why)));
    status.textContent = String(why);
  }
  function fillDetail(cell, problem, asked, rows, focus) {
    const column = columns[cell.column], near = neighbours(cell);
    detail.textContent = "";
    const title = element("h2", "", (problem.name || "problem " + (problem.index + 1)) + (label(column) ? ", " + label(column) : ""));
    title.id = "f-title";
    title.tabIndex = -1;
    const moves = element("p", "controls");
    moves.append(step("previous problem", near.before), step("next problem", near.after));
    if (columns.length > 1) moves.append(step("previous column", near.earlier), step("next column", near.later));
    const back = element("button", "", "back to the table");
    back.type = "button";
    back.addEventListener("click", toTable);
    moves.append(back);
    detail.append(title, element("p", "quiet", said(cell)), moves);
    if (asked.prompt) {
      const box = element("details", "asked");
      box.open = asked.prompt.length <= 1500 || Boolean(hits);
      box.append(element("summary", "", "prompt"), written(asked.prompt));
      detail.append(box);
    }
    if (asked.gold !== null) detail.append(element("p", "gold", "gold: " + plain(asked.gold)));
    const found = hits && hits.cells.get(cell.index);
    const kept = rows.map((row, i) => [row, i]).filter(([, i]) => fits(cell.codes[i]));
    const some = found ? kept.filter(([, i]) => found.has(i)) : kept;
    const list = element("ol");
    some.forEach(([row, i]) => list.append(card(cell.codes[i], row, i)));
    if (some.length < rows.length) {
      const all = element("button", "", "show all " + rows.length + " completions");
      all.type = "button";
      all.addEventListener("click", () => { list.textContent = ""; rows.forEach((row, i) => list.append(card(cell.codes[i], row, i))); all.remove(); });
      detail.append(all);
    }
    detail.append(list);
    if (focus) title.focus();
  }
  function card(code, [text, note], i) {
    const kind = code.toLowerCase(), item = element("li"), made = element("article", "sample verdict-" + WORDS[kind]), head = element("p", "sample-head");
    head.append(element("span", "word", SAID[kind]), " completion " + (i + 1) + (code !== kind ? " · cut at the length limit" : "") + (note ? " · " + plain(note) : ""));
    made.append(head, text === null ? element("p", "quiet", "no text in the file") : written(text));
    item.append(made);
    return item;
  }
  function toTable() {
    const there = (opened && document.getElementById("cell-" + opened.index)) || table.querySelector(".cell");
    if (there) there.focus();
  }

  // ---- search through all parts

  async function search() {
    const want = control.search.value.toLowerCase(), mine = ++job;
    if (!want) { hits = null; searched = ""; restart(); return; }
    const made = { problems: new Set(), cells: new Map(), completions: 0 };
    try {
      for (let number = 0; number < data.starts.length; number += 1) {
        const entries = await part(number);
        if (mine !== job) return;
        entries.forEach((entry, i) => {
          const owner = owners.get(data.starts[number] + i);
          if (!Array.isArray(entry)) {
            if ((entry.prompt || "").toLowerCase().includes(want) || (entry.gold || "").toLowerCase().includes(want)) made.problems.add(owner.index);
            return;
          }
          const found = new Set(entry.map((row, k) => ((row[0] || "").toLowerCase().includes(want) || row[1].toLowerCase().includes(want) ? k : -1)).filter((k) => k >= 0));
          if (found.size) made.cells.set(owner.index, found);
          made.completions += found.size;
        });
        if (number % 8 === 7) status.textContent = "searching, " + percent(number + 1, data.starts.length) + " done";
      }
    } catch (why) { failed(why); return; }
    hits = made;
    searched = want;
    restart();
    openShown();
  }
  function openShown() {
    const there = opened && table.querySelector("#cell-" + opened.index), start = there || table.querySelector(".cell");
    if (start) open(cells[Number(start.id.slice(5))], false);
  }

  // ---- controls and keys

  function restart() { first = 0; draw(); }
  function option(select, value, text) {
    const made = element("option", "", text);
    made.value = value;
    select.append(made);
  }
  data.arms.forEach((name, i) => option(control.arm, String(i), name));
  control.arm.parentElement.hidden = data.arms.length < 2;
  const steps = [...new Set(columns.map((column) => column.step))].filter((one) => one !== null).sort((a, b) => a - b);
  const ofStep = new Map(steps.map((one) => [one, [0, 0]]));
  cells.forEach((cell) => { const sum = ofStep.get(columns[cell.column].step); if (sum) { sum[0] += cell.right; sum[1] += cell.n; } });
  steps.forEach((one) => option(control.step, String(one), one + " (" + percent(...ofStep.get(one)) + " right)"));
  control.step.parentElement.hidden = steps.length < 2;
  [...control.show.options].forEach((one) => { one.hidden = one.disabled = columns.length < 2 && ["gained", "lost"].includes(one.value); });
  control.order.lastElementChild.hidden = control.order.lastElementChild.disabled = columns.length < 2;
  const codes = new Set(data.cells.flatMap((cell) => [...new Set(cell[2].toLowerCase())]));
  Object.keys(SAID).filter((code) => codes.has(code)).forEach((code) => option(control.code, code, SAID[code]));
  if (data.cut) option(control.code, "cut", "cut at the length limit");
  home.querySelector(".key:has(.bar-cut)").hidden = !data.cut;
  at("go").hidden = Boolean(data.texts);
  control.search.addEventListener("input", () => {
    job += 1;
    hits = null;
    searched = "";
    clearTimeout(timer);
    timer = setTimeout(data.texts ? search : restart, 150);
  });
  ["arm", "step", "show", "code", "order"].forEach((name) => control[name].addEventListener("input", () => { restart(); openShown(); }));
  at("form").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); search(); });
  at("before").addEventListener("click", () => { first -= ROWS; draw(); });
  at("after").addEventListener("click", () => { first += ROWS; draw(); });
  table.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e6], End: [0, 1e6] };
    if (!(event.key in moves) || !event.target.classList.contains("cell")) return;
    event.preventDefault();
    const row = shownRows.findIndex((buttons) => buttons.includes(event.target)), [down, aside] = moves[event.key];
    let next = null;
    if (aside) {
      const own = shownRows[row].filter(Boolean);
      next = own[Math.max(0, Math.min(own.length - 1, own.indexOf(event.target) + aside))];
    } else {
      const place = shownRows[row].indexOf(event.target);
      for (let i = row + down; i >= 0 && i < shownRows.length && !next; i += down) {
        const near = shownRows[i].map((one, j) => [one, Math.abs(j - place)]).filter(([one]) => one);
        next = near.length ? near.reduce((a, b) => (b[1] < a[1] ? b : a))[0] : null;
      }
    }
    if (!next || next === event.target) return;
    next.focus();
    clearTimeout(timer);
    timer = setTimeout(() => { open(cells[Number(next.id.slice(5))], false); }, 150);
  });
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); control.search.focus(); }
    if (event.key === "Escape" && detail.contains(event.target)) toTable();
  });
  home.hidden = false;
  draw();
  openShown();
})();
