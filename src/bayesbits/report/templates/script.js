// What moves on the page: tables that sort and filter, values where one points, and charts that zoom.
// The page is complete without it. Texts are only ever set as text, never as markup.
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const svgName = "http://www.w3.org/2000/svg";

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
  }
  const hide = () => { tip.hidden = true; };

  // Tips: elements with data-tip.
  document.addEventListener("pointermove", (event) => {
    const found = event.target.closest && event.target.closest("[data-tip]");
    if (found) show(found.dataset.tip, event.clientX, event.clientY);
    else if (!event.target.closest || !event.target.closest(".chart")) hide();
  });
  document.addEventListener("scroll", hide, { passive: true, capture: true });

  // All rows are opened by a button, and for the printer; afterwards those are closed again that were.
  const rows = [...document.querySelectorAll("details")], button = document.getElementById("open-rows");
  const layers = rows.filter((row) => row.closest(".picture"));
  if (button && layers.length) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const open = !layers.every((row) => row.open);
      for (const row of layers) row.open = open;
      button.textContent = open ? "Close all rows" : "Open all rows";
    });
  }
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = rows.filter((row) => !row.open);
    for (const row of closed) row.open = true;
  });
  addEventListener("afterprint", () => {
    for (const row of closed) row.open = false;
    closed = [];
  });

  // Tables that sort by a heading and filter by text.
  for (const part of document.querySelectorAll(".sortable")) {
    const body = part.querySelector("tbody"), rows = [...body.rows], heads = [...part.querySelectorAll("thead th")];
    const value = (row, column) => {
      const text = row.cells[column].dataset.v, number = Number(text);
      return text !== "" && !Number.isNaN(number) ? number : text;
    };
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => (down ? -1 : 1) * compare(value(a, column), value(b, column)));
      body.append(...rows);
    }));
    const input = part.querySelector("input"), output = part.querySelector("output");
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      output.textContent = `${shown} of ${rows.length} rows`;
    });
  }

  // Plans: two runs are chosen, and layers in which they differ are marked.
  for (const part of document.querySelectorAll(".plans")) {
    const [first, second] = part.querySelectorAll("select"), only = part.querySelector("input"), output = part.querySelector("output");
    const rows = [...part.querySelectorAll("tbody tr")];
    const update = () => {
      const chosen = [first.value, second.value];
      for (const cell of part.querySelectorAll("[data-run]")) cell.hidden = !chosen.includes(cell.dataset.run);
      let differing = 0;
      for (const row of rows) {
        const [one, other] = chosen.map((run) => row.querySelector(`[data-run="${run}"]`).textContent);
        row.classList.toggle("differs", one !== other);
        row.hidden = only.checked && one === other;
        differing += one !== other;
      }
      output.textContent = `${differing} of ${rows.length} layers differ`;
    };
    for (const control of [first, second, only]) control.addEventListener("change", update);
    update();
  }

  // Charts: read values by pointing or with the arrow keys, zoom by dragging.
  const number = (value) => Number(value.toPrecision(4)).toString();
  for (const chart of document.querySelectorAll("svg.chart")) {
    const data = JSON.parse(chart.dataset.chart), plot = chart.querySelector(".plot");
    const marks = chart.querySelector(".marks"), parts = chart.querySelector(".parts");
    const [low, high, left, right, byLogarithm] = data.h, [bottomValue, topValue, bottom, top, vLog] = data.v;
    const scale = byLogarithm ? Math.log10 : (value) => value;
    let from = scale(low), to = scale(high), place = -1, pressed = null;
    const original = marks.innerHTML;
    const px = (value) => left + (right - left) * (scale(value) - from) / (to - from);
    const vertical = vLog ? Math.log10 : (value) => value;
    const py = (value) => bottom + (top - bottom) * (vertical(value) - vertical(bottomValue)) / (vertical(topValue) - vertical(bottomValue));
    const cross = document.createElementNS(svgName, "line");
    cross.setAttribute("class", "cross");
    cross.setAttribute("visibility", "hidden");
    const brush = document.createElementNS(svgName, "rect");
    brush.setAttribute("class", "brush");
    brush.setAttribute("visibility", "hidden");
    plot.append(brush, cross);
    const points = [];
    data.s.forEach(([name, own, notes], series) => own.forEach(([x, y], index) => points.push({ x, y, name, series, note: notes[index] })));
    points.sort((a, b) => a.x - b.x || a.series - b.series);
    const steps = [...new Set(points.map((point) => point.x))];

    function at(x, clientX, clientY, one) {
      const lines = one && one.note ? [one.note] : [`${data.x} ${number(x)}`];
      if (!(one && one.note)) {
        for (const [name, own] of data.s) {
          let best = null;
          for (const point of own) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
          if (best) lines.push(`${name} ${number(best[1])}${data.u}`);
        }
      }
      cross.setAttribute("x1", px(x)); cross.setAttribute("x2", px(x));
      cross.setAttribute("y1", top - 6); cross.setAttribute("y2", bottom);
      cross.setAttribute("visibility", "visible");
      show(lines.join("\n"), clientX, clientY);
    }
    function toChart(event) {
      const box = chart.getBoundingClientRect(), ratio = chart.viewBox.baseVal.width / box.width;
      return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    }
    function nearest(cx, cy) {
      let best = null, distance = Infinity;
      for (const point of points) {
        const dx = px(point.x) - cx, dy = point.note ? py(point.y) - cy : 0, found = dx * dx + dy * dy;
        if (found < distance) { best = point; distance = found; }
      }
      return best;
    }
    function leave() { cross.setAttribute("visibility", "hidden"); hide(); }
    function redraw() {
      const groups = chart.querySelectorAll(".series");
      data.s.forEach(([, own], series) => {
        const line = groups[series].querySelector("polyline");
        if (line) line.setAttribute("points", own.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" "));
        const dots = groups[series].querySelectorAll("circle, rect, path");
        own.forEach(([x, y], index) => {
          const dot = dots[index];
          if (!dot) return;
          if (!dot.dataset.x) { const box = dot.getBBox(); dot.dataset.x = box.x + box.width / 2; }
          dot.setAttribute("transform", `translate(${px(x) - Number(dot.dataset.x)} 0)`);
        });
        const band = groups[series].querySelector(".band");
        if (band) band.style.visibility = whole() ? "visible" : "hidden";
      });
      if (parts) parts.style.visibility = whole() ? "visible" : "hidden";
      if (whole()) { marks.innerHTML = original; return; }
      marks.textContent = "";
      for (let part = 0; part <= 2; part++) {
        const value = from + (to - from) * part / 2, text = document.createElementNS(svgName, "text");
        text.setAttribute("x", left + (right - left) * part / 2);
        text.setAttribute("y", bottom + 16);
        text.setAttribute("class", "tick");
        text.setAttribute("text-anchor", ["start", "middle", "end"][part]);
        text.textContent = number(byLogarithm ? 10 ** value : value);
        marks.append(text);
      }
    }
    const whole = () => from === scale(low) && to === scale(high);
    function zoom(first, last) {
      const span = to - from, newFrom = from + span * (first - left) / (right - left), newTo = from + span * (last - left) / (right - left);
      if (newTo - newFrom > 1e-6 * Math.abs(scale(high) - scale(low))) { from = newFrom; to = newTo; redraw(); }
    }
    function reset() { from = scale(low); to = scale(high); redraw(); leave(); }

    chart.addEventListener("pointermove", (event) => {
      const [cx, cy] = toChart(event);
      if (pressed !== null) {
        const first = Math.max(left, Math.min(pressed, cx)), last = Math.min(right, Math.max(pressed, cx));
        brush.setAttribute("x", first); brush.setAttribute("width", Math.max(0, last - first));
        brush.setAttribute("y", top - 6); brush.setAttribute("height", bottom - top + 6);
        brush.setAttribute("visibility", "visible");
      }
      const one = nearest(cx, cy);
      if (one) at(one.x, event.clientX, event.clientY, one);
    });
    chart.addEventListener("pointerleave", () => { pressed = null; brush.setAttribute("visibility", "hidden"); leave(); });
    chart.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") pressed = toChart(event)[0]; });
    chart.addEventListener("pointerup", (event) => {
      const end = toChart(event)[0], begin = pressed;
      pressed = null;
      brush.setAttribute("visibility", "hidden");
      if (begin !== null && Math.abs(end - begin) > 8) zoom(Math.max(left, Math.min(begin, end)), Math.min(right, Math.max(begin, end)));
    });
    chart.addEventListener("dblclick", reset);
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { reset(); return; }
      if (event.key === "+" || event.key === "-") {
        const quarter = (right - left) / 4;
        if (event.key === "+") zoom(left + quarter, right - quarter); else reset();
        return;
      }
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      event.preventDefault();
      const list = points.some((point) => point.note) ? points : steps;
      place = Math.max(0, Math.min(list.length - 1, place + (event.key === "ArrowRight" ? 1 : -1)));
      const box = chart.getBoundingClientRect(), one = list === points ? points[place] : null, x = one ? one.x : steps[place];
      const ratio = box.width / chart.viewBox.baseVal.width;
      at(x, box.left + px(x) * ratio, box.top + 30 * ratio, one);
    });
    chart.addEventListener("blur", leave);
  }
})();
