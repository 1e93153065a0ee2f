"use strict";
(() => {
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Tables: a click on a head sorts by it, long ones show their first rows until asked.
  const key = cell => {
    const text = cell.dataset.k ?? cell.textContent.replace(/,/g, "");
    const number = Number.parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const order = (a, b) => typeof a === typeof b
    ? (typeof a === "number" ? a - b : a.localeCompare(b, undefined, {numeric: true}))
    : (typeof a === "number" ? -1 : 1);
  for (const table of document.querySelectorAll("table.sorts")) {
    const heads = [...table.tHead.rows[0].cells];
    const sort = head => {
      const place = heads.indexOf(head);
      // Numbers start with the largest, names with the first.
      const first = head.classList.contains("n") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort") === first ? other : first;
      for (const one of heads) one.setAttribute("aria-sort", one === head ? now : "none");
      const sign = now === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) =>
        sign * order(key(a.cells[place]), key(b.cells[place]))));
      fold(table);
    };
    for (const head of heads) {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(head));
      head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
    }
  }
  const fold = table => {
    const shown = Number(table.dataset.fold);
    [...table.tBodies[0].rows].forEach((row, place) =>
      row.classList.toggle("more", place >= shown));
  };
  for (const table of document.querySelectorAll("table[data-fold]")) {
    const rows = table.tBodies[0].rows.length;
    if (rows <= Number(table.dataset.fold)) continue;
    fold(table);
    table.classList.add("folded");
    const button = document.createElement("button");
    const say = () => {
      button.textContent = table.classList.contains("folded") ? `show all ${rows} rows` : "show fewer";
    };
    button.addEventListener("click", () => { table.classList.toggle("folded"); say(); });
    say();
    table.parentElement.after(button);
  }

  if (!window.Bokeh) return;

  const named = name => {
    for (const document_ of Bokeh.documents) {
      const model = document_.get_model_by_name(name);
      if (model) return model;
    }
    return null;
  };
  const draw = async () => {
    for (const data of document.querySelectorAll("script.bokeh"))
      await Bokeh.embed.embed_item(JSON.parse(data.textContent));
    paintCharts();
    document.documentElement.dataset.drawn = "yes";
  };
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => {
      const [start, end] = button.dataset.zoom.split(" ").map(Number);
      named(button.dataset.of).x_range.setv({start, end});
    });
  for (const button of document.querySelectorAll("[data-toggle]"))
    button.addEventListener("click", () => {
      const model = named(button.dataset.toggle);
      model.visible = !model.visible;
      button.setAttribute("aria-pressed", model.visible);
    });
  draw();
})();
