"use strict";
// Headers of sortable tables become buttons; without this script the tables read as they are.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
      rows.sort(([a], [b]) => compare(a, b) * (rising ? 1 : -1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// A cell sorts by data-v where it has one (a number, or nothing at all), else by its text.
function key(cell) {
  const value = cell.dataset.v ?? cell.textContent.trim();
  const number = Number(value.replace("inf", "Infinity"));
  return value === "" || Number.isNaN(number) ? value : number;
}

// Numbers before texts before nothing.
function compare(a, b) {
  const rank = (value) => (typeof value === "number" ? 0 : value === "" ? 2 : 1);
  if (rank(a) !== rank(b)) return rank(a) - rank(b);
  if (typeof a === "number") return a - b;
  return a.localeCompare(b, "en", { numeric: true });
}

// Printed pages show what is folded on the screen.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
