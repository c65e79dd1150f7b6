"use strict";
(function () {
  const home = document.getElementById("browser");
  const source = document.getElementById("samples-data");
  if (!home || !source) return;
  const data = JSON.parse(source.textContent);
  const words = ["right", "wrong", "undecided"];
  const STEP = 8;
  const at = (id) => document.getElementById(id);
  const controls = { problem: at("b-problem"), arm: at("b-arm"), verdict: at("b-verdict"), search: at("b-search"), strip: at("b-strip") };
  const status = at("b-status"), list = at("b-list");
  let limit = STEP;
  const questions = data.sets.map((one) => new Map(one.asked.map(([problem, ...question]) => [problem, question])));

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function goldOf(problem) {
    const known = questions.map((one) => one.get(problem)).find((one) => one && one[1] !== null);
    if (!known) return "";
    const gold = data.golds[known[1]];
    return ", gold " + (gold.length > 24 ? gold.slice(0, 23) + "\u2026" : gold);
  }
  function option(select, value, text) {
    const made = element("option", "", text);
    made.value = value;
    select.append(made);
  }
  const solved = (i) => (data.solved[i] ? ", " + data.solved[i] : "");
  data.problems.forEach((name, i) => option(controls.problem, String(i), name + solved(i) + goldOf(i)));
  option(controls.problem, "", "all problems");
  data.sets.forEach((one, i) => option(controls.arm, String(i), one.name));

  const allPlain = data.sets.every((one) => one.plain);
  if (allPlain) {
    controls.strip.parentElement.hidden = true;
    home.querySelector(".legend").hidden = true;
  }

  const entropies = data.rows.flatMap((row) => row.e || []).filter((value) => value !== null).sort((a, b) => a - b);
  const highest = Math.max(0.001, entropies[Math.floor(0.99 * entropies.length)] || 0); // a few broken answers would pale the rest
  const digits = (value) => (value === null ? "not recorded" : value.toFixed(3));

  function shade(cell, strip, value) {
    if (value === null) {
      cell.className = "heat";
    } else if (strip === "e") {
      cell.className = "heat heat-e";
      cell.style.opacity = String(0.06 + 0.94 * Math.min(1, value / highest));
    } else {
      cell.className = value >= 1 ? "heat heat-up" : "heat heat-down";
      cell.style.opacity = String(Math.abs(value - 1) < 0.0005 ? 0.08 : 0.15 + 0.85 * Math.min(1, Math.abs(value - 1) / 0.4));
    }
  }
  function tokens(row, first, behind) {
    const box = element("div", "tokens");
    const wanted = controls.strip.value;
    const strips = ["e", "q"].filter((name) => row[name] && (wanted === "both" || wanted === name));
    row.k.slice(first, behind).forEach((place, j) => {
      const i = first + j;
      const token = element("span", "token");
      const spelling = data.spellings[place];
      const written = element("span", "spelling");
      spelling.replaceAll("\n", "\u21b5").split(/( +)/).filter(Boolean).forEach((part) => {
        written.append(part[0] === " " ? element("span", "space", "\u00b7".repeat(part.length)) : document.createTextNode(part));
      });
      token.append(written);
      const said = [];
      if (row.e) said.push("entropy " + digits(row.e[i]) + " nats");
      if (row.q) said.push("q " + digits(row.q[i]));
      token.title = said.join(", ");
      strips.forEach((name) => {
        const cell = element("i");
        shade(cell, name, row[name][i]);
        token.append(cell);
      });
      box.append(token);
      if (spelling.includes("\n")) box.append(element("br"));
    });
    return box;
  }
  function turns(row, spelled) {
    const box = element("div", "turns");
    let first = 0;
    row.u.forEach((turn, i) => {
      const part = element("div", turn[0] ? "turn" : "turn turn-reply");
      part.append(element("p", "who", (turn[0] ? "policy" : "environment") + ", turn " + (1 + Math.floor(i / 2))));
      const shown = spelled && turn[0];
      part.append(shown ? tokens(row, first, first + turn[2]) : element("pre", "sample-text", turn[1]));
      first += turn[2];
      box.append(part);
    });
    return box;
  }
  function own(row, values) {
    if (!row.u) return values;
    const drawn = row.u.flatMap((turn) => Array(turn[2]).fill(turn[0]));
    return values.filter((_, i) => drawn[i]);
  }
  function facts(row) {
    const said = ["sample " + row.n, data.reasons[row.r]];
    if (row.a !== undefined) said.push("answer " + row.a);
    if (row.b !== undefined) said.push("perplexity " + (row.b >= 1e9 ? "above 1e9" : row.b) + " under the base");
    const known = own(row, row.e || []).filter((value) => value !== null);
    if (known.length) said.push("mean entropy " + digits(known.reduce((a, b) => a + b, 0) / known.length));
    if (row.u) said.push(Math.ceil(row.u.length / 2) + " turns");
    if (row.x) said.push(row.x.toLocaleString("en") + " more characters are in the " + (data.sets[row.s].plain ? "file" : "store"));
    return said.filter(Boolean).join(" · ");
  }
  function card(row) {
    const made = element("article", "sample verdict-" + words[row.v]);
    const head = element("p", "sample-head");
    head.append(element("span", "word", words[row.v]), document.createTextNode(" " + facts(row)));
    made.append(head);
    const spelled = row.k && controls.strip.value !== "none" && (row.e || row.q);
    if (row.u) made.append(turns(row, spelled));
    else made.append(spelled ? tokens(row, 0, row.k.length) : element("pre", "sample-text", row.t));
    if (row.l) made.append(element("p", "cut", (row.u ? "unfinished after " : "cut at ") + row.l + " tokens"));
    if (!data.sets[row.s].plain && controls.strip.value !== "none" && !row.e && !row.q) made.append(element("p", "quiet", unmeasured(row)));
    return made;
  }
  function unmeasured(row) {
    if (row.m) return "entropies or q are recorded, but no tokenizer on the machine that wrote this page has the sample's tokens";
    return "no entropies or q recorded";
  }
  function asked(box, prompt, gold) {
    if (data.prompts[prompt]) {
      const details = element("details", "asked"), summary = element("summary", "", "prompt");
      details.open = true;
      details.append(summary, element("pre", "sample-text", data.prompts[prompt]));
      box.append(details);
    }
    if (gold !== null) box.append(element("p", "gold", "gold: " + data.golds[gold]));
  }
  function column(number, rows, question) {
    const made = element("section", "column");
    const title = element("h4", "", data.sets[number].name);
    title.style.borderColor = "var(--c" + data.sets[number].color.slice(1) + ", " + data.sets[number].color + ")";
    made.append(title);
    if (question) asked(made, ...question);
    rows.slice(0, limit).forEach((row) => made.append(card(row)));
    if (!rows.length) made.append(element("p", "quiet", "no sample of this kind"));
    if (rows.length > limit) made.append(element("p", "quiet", (rows.length - limit) + " more"));
    return made;
  }
  function draw() {
    const want = controls.search.value.toLowerCase();
    const kept = data.rows.filter((row) =>
      (controls.problem.value === "" || row.p === Number(controls.problem.value)) &&
      (controls.arm.value === "" || row.s === Number(controls.arm.value)) &&
      (controls.verdict.value === "" || row.v === Number(controls.verdict.value)) &&
      (want === "" || row.t.toLowerCase().includes(want) || data.problems[row.p].toLowerCase().includes(want)));
    const problems = [...new Set(kept.map((row) => row.p))];
    list.textContent = "";
    let hidden = 0, shown = 0;
    problems.slice(0, controls.problem.value === "" ? limit : 1).forEach((problem) => {
      const rows = kept.filter((row) => row.p === problem);
      list.append(element("h3", "problem", "problem " + data.problems[problem] + solved(problem)));
      const grid = element("div", "columns");
      const shownSets = data.sets.map((_, i) => i).filter((i) => rows.some((row) => row.s === i));
      const posed = shownSets.map((i) => questions[i].get(problem));
      const alike = posed.every((one) => one && one.join() === posed[0].join());
      if (alike) asked(list, ...posed[0]);
      else if (!posed.some(Boolean)) list.append(element("p", "quiet", "this store does not keep prompts and golds; the same eval command adds them"));
      data.sets.forEach((_, i) => {
        if (controls.arm.value !== "" && i !== Number(controls.arm.value)) return;
        const mine = rows.filter((row) => row.s === i);
        if (controls.problem.value === "" && !mine.length) return;
        shown += Math.min(limit, mine.length);
        hidden += Math.max(0, mine.length - limit);
        grid.append(column(i, mine, alike ? null : questions[i].get(problem)));
      });
      list.append(grid);
    });
    const waiting = controls.problem.value === "" ? Math.max(0, problems.length - limit) : 0;
    status.textContent = kept.length + " of " + data.rows.length + " samples, " + problems.length + (problems.length === 1 ? " problem" : " problems") + "; " + shown + " shown";
    const more = at("b-more");
    more.hidden = hidden === 0 && waiting === 0;
    more.textContent = "show more";
  }
  function restart() { limit = STEP; draw(); }
  Object.values(controls).forEach((control) => control.addEventListener("input", restart));
  at("b-more").addEventListener("click", () => { limit *= 2; draw(); });
  home.hidden = false;
  draw();
})();
