"""What makes a page's pictures move: the wheel zooms, dragging moves."""

from __future__ import annotations

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #24292f; margin: 2em auto;
  max-width: 1200px; padding: 0 1em; }
h1 { font-size: 1.35em; } h2 { font-size: 1.05em; margin: 1.6em 0 .4em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em .15em 0;
  text-align: left; } td.n, th.n { text-align: right;
  font-variant-numeric: tabular-nums; }
pre { background: #f6f8fa; padding: .8em; overflow-x: auto; }
.row { display: flex; align-items: center; height: 24px; }
.row .name { flex: 0 0 190px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; font-size: 12px; }
.row svg, .tall svg { flex: 1; height: 20px; background: #f6f8fa; }
.tall { display: flex; } .tall .name { flex: 0 0 190px; font-size: 12px; }
.tall svg { height: 120px; } .hint { color: #6e7781; font-size: 12px; }
svg { cursor: grab; touch-action: none; } .axis svg { background: none; }
rect { vector-effect: non-scaling-stroke; }
.key { display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em;
  vertical-align: -1px; }
"""

SCRIPT = """
const all = [...document.querySelectorAll("svg.time")];
const axis = document.querySelector("svg.axis");
const whole = Number(document.body.dataset.length);
const seconds = Number(document.body.dataset.seconds);
let x = 0, width = whole;
function show() {
  width = Math.min(whole, Math.max(whole / 5000, width));
  x = Math.min(whole - width, Math.max(0, x));
  for (const svg of all) {
    const height = svg.viewBox.baseVal.height;
    svg.setAttribute("viewBox", `${x} 0 ${width} ${height}`);
  }
  const size = axis.getBoundingClientRect().width || 900;
  axis.setAttribute("viewBox", `0 0 ${size} 20`);
  axis.replaceChildren();
  const perUnit = seconds / whole;
  const raw = width * perUnit / 8, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
  const first = Math.ceil(x * perUnit / step);
  for (let k = first; k * step <= (x + width) * perUnit; k++) {
    const text = document.createElementNS(axis.namespaceURI, "text");
    text.setAttribute("x", (k * step / perUnit - x) / width * size);
    text.setAttribute("y", 14);
    text.setAttribute("font-size", 11);
    text.textContent = Number((k * step).toPrecision(6)) + " s";
    axis.append(text);
  }
}
for (const svg of all) {
  svg.addEventListener("wheel", event => {
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width;
    const next = width * (event.deltaY > 0 ? 1.25 : 0.8);
    x += at * (width - Math.min(next, whole));
    width = next;
    show();
  }, { passive: false });
  svg.addEventListener("pointerdown", event => {
    svg.setPointerCapture(event.pointerId);
    let last = event.clientX;
    svg.onpointermove = move => {
      x -= (move.clientX - last) / svg.getBoundingClientRect().width * width;
      last = move.clientX;
      show();
    };
  });
  svg.addEventListener("pointerup", () => { svg.onpointermove = null; });
  svg.addEventListener("dblclick", () => { x = 0; width = whole; show(); });
}
addEventListener("resize", show);
show();
"""
