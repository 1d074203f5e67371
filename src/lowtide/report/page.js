// Reading off the plot: pointer, touch or arrow keys choose a sample; the legend shows its numbers.
// Everything is set as text, never as HTML. Without this script the page is whole, with the last sample's numbers.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const plot = document.getElementById("plot");
  if (!plot) return;
  const seconds = data.seconds, last = seconds.length - 1;
  const cursor = document.getElementById("cursor"), when = document.getElementById("when");
  const caption = document.getElementById("at"), atRest = caption.textContent;
  const cells = Array.from(document.querySelectorAll("[data-read]"));
  const cellsAtRest = cells.map((cell) => cell.textContent); // "the end" is judged, not the last point
  const HELD = ["anon", "mapped", "shmem", "tables"];

  // The same figures as units.format_size gives.
  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let value = bytes, unit = 0;
    while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
    if (unit === 0) return Math.trunc(value) + " B";
    const digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) + " " + units[unit];
  }

  function time(value) {
    if (value < 120) return value.toFixed(1) + " s";
    if (value < 7200) return (value / 60).toFixed(1) + " min";
    return (value / 3600).toFixed(1) + " h";
  }

  function sum(kinds, place) { return kinds.reduce((total, kind) => total + data.kinds[kind][place], 0); }

  function read(name, place) {
    if (name === "sum") return sum(data.stack, place);
    if (name === "held") return sum(HELD, place);
    return name === "rss" ? data.rss[place] : data.kinds[name][place];
  }

  function nearest(second) {
    let low = 0, high = last;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (seconds[middle] < second) low = middle; else high = middle;
    }
    return second - seconds[low] <= seconds[high] - second ? low : high;
  }

  let place = -1;
  function fill(at) { cells.forEach((cell) => { cell.textContent = size(read(cell.dataset.read, at)); }); }

  function show(at) {
    place = Math.max(0, Math.min(last, at));
    cursor.hidden = false;
    cursor.style.left = (100 * seconds[place]) / seconds[last] + "%";
    when.textContent = time(seconds[place]);
    caption.textContent = "at " + time(seconds[place]);
    fill(place);
    plot.setAttribute("aria-valuenow", String(place));
    const words = data.stack.map((kind) => kind + " " + size(data.kinds[kind][place]));
    plot.setAttribute("aria-valuetext", time(seconds[place]) + ": " + words.join(", "));
  }

  function rest() {
    place = -1;
    cursor.hidden = true;
    caption.textContent = atRest;
    cells.forEach((cell, at) => { cell.textContent = cellsAtRest[at]; });
  }

  function follow(event) {
    const box = plot.getBoundingClientRect();
    show(nearest((seconds[last] * (event.clientX - box.left)) / box.width));
  }

  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") rest(); });
  plot.addEventListener("blur", rest);
  plot.addEventListener("focus", () => { if (place < 0 && plot.matches(":focus-visible")) show(last); });
  plot.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(last / 20)), here = place < 0 ? last : place;
    const goes = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - far, PageUp: here + far, Home: 0, End: last,
    };
    if (event.key === "Escape") { rest(); return; }
    if (!(event.key in goes)) return;
    event.preventDefault();
    show(goes[event.key]);
  });
})();
