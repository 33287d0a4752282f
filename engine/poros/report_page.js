"use strict";
// The pointer over a chart reads the values of the nearest step.
for (const figure of document.querySelectorAll("figure[data-readings]")) {
  const chart = JSON.parse(figure.dataset.readings);
  const pointer = figure.querySelector(".pointer");
  const box = figure.querySelector(".reading");
  const width = figure.querySelector("svg").viewBox.baseVal.width;
  const hide = () => { pointer.style.visibility = box.style.visibility = "hidden"; };
  const show = (event) => {
    const frame = figure.getBoundingClientRect();
    const part = (event.clientX - frame.left) / frame.width;
    const along = (part - chart.left) / (chart.right - chart.left);
    const wanted = chart.first + along * (chart.last - chart.first);
    let best = null;
    for (const row of chart.rows) {
      if (best === null || Math.abs(row[0] - wanted) < Math.abs(best[0] - wanted)) best = row;
    }
    if (best === null) return;
    const at = chart.left + (chart.right - chart.left) * ((best[0] - chart.first) / Math.max(1, chart.last - chart.first));
    pointer.setAttribute("x1", at * width);
    pointer.setAttribute("x2", at * width);
    box.replaceChildren(document.createTextNode("step " + best[0]));
    for (const [index, value] of Object.entries(best[1])) {
      const row = document.createElement("div");
      const mark = document.createElement("i");
      mark.className = chart.looks[index];
      row.append(mark, chart.names[index] + " " + value);
      box.append(row);
    }
    pointer.style.visibility = box.style.visibility = "visible";
    const left = at * frame.width;
    box.style.left = (left + box.offsetWidth + 16 > frame.width ? left - box.offsetWidth - 10 : left + 10) + "px";
  };
  figure.addEventListener("pointermove", show);
  figure.addEventListener("pointerdown", show);
  figure.addEventListener("pointerleave", hide);
}
document.documentElement.dataset.script = "ran";
