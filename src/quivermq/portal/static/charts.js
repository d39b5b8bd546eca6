// Draws series of the last minutes as lines: no library, no build.
"use strict";

const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const [TOP, RIGHT, BOTTOM, LEFT, HEIGHT] = [8, 6, 20, 52, 150];
  let seconds = 900;

  const units = {
    rate: (v) => `${short(v)}/s`,
    bytes: (v) => `${bytes(v)}/s`,
    seconds: (v) => (v < 1 ? `${+(v * 1e3).toFixed(v < 0.01 ? 1 : 0)} ms` : `${+v.toFixed(1)} s`),
    count: (v) => short(v),
  };

  function short(v) {
    for (const [scale, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(v) >= scale) return `${+(v / scale).toPrecision(3)} ${prefix}`;
    }
    return v < 10 ? `${+v.toFixed(1)}` : `${Math.round(v)}`;
  }

  function bytes(v) {
    for (const [scale, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
      if (v >= scale) return `${+(v / scale).toPrecision(3)} ${unit}`;
    }
    return `${Math.round(v)} B`;
  }

  function node(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  }

  // The next of 1, 2, 5, 10, 20, ... above: a scale that people read.
  function ceiling(v) {
    if (!(v > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(v));
    return [1, 2, 5, 10].find((step) => v <= step * power) * power;
  }

  function parsed(element) {
    return element.dataset.series.split(",").map((each) => {
      const cut = each.lastIndexOf(":");
      return { name: each.slice(0, cut), label: each.slice(cut + 1) };
    });
  }

  function draw(element, data) {
    const format = units[element.dataset.unit] || units.count;
    const lines = parsed(element).map((each) => ({ ...each, points: data.series[each.name] || [] }));
    element.replaceChildren();
    const legend = document.createElement("div");
    legend.className = "legend";
    lines.forEach((line, n) => {
      const item = document.createElement("span");
      const key = document.createElement("i");
      key.className = `key s${n + 1}`;
      const last = document.createElement("b");
      last.textContent = line.points.length ? format(line.points.at(-1)[1]) : "–";
      item.append(key, `${line.label} `, last);
      legend.append(item);
    });
    element.append(legend);
    if (!lines.some((line) => line.points.length > 1)) {
      const none = document.createElement("div");
      none.className = "none";
      none.textContent = "No traffic in this time";
      element.append(none);
      return;
    }
    const width = Math.max(220, element.clientWidth - 28);
    const svg = node("svg", { viewBox: `0 0 ${width} ${HEIGHT}` });
    // A portal that began a minute ago has no quarter of an hour to show.
    const first = Math.min(...lines.flatMap((line) => line.points.map((p) => p[0])));
    const end = data.now;
    const span = Math.min(data.seconds, Math.max(60, end - first));
    const start = end - span;
    const top = ceiling(Math.max(...lines.flatMap((line) => line.points.map((p) => p[1]))));
    const x = (at) => LEFT + ((at - start) / span) * (width - LEFT - RIGHT);
    const y = (v) => TOP + (1 - v / top) * (HEIGHT - TOP - BOTTOM);
    for (const share of [0, 0.5, 1]) {
      const place = y(share * top);
      node("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: place, y2: place }, svg);
      node("text", { x: LEFT - 8, y: place + 4, "text-anchor": "end" }, svg).textContent = format(share * top);
    }
    for (const share of [0, 0.5, 1]) {
      const anchor = ["start", "middle", "end"][share * 2];
      const text = node("text", { x: LEFT + share * (width - LEFT - RIGHT), y: HEIGHT - 3, "text-anchor": anchor }, svg);
      text.textContent = clock(start + share * span, span < 240);
    }
    lines.forEach((line, n) => {
      const gap = Math.max(10, (span / 240) * 4);
      for (const part of parts(line.points, gap)) {
        const path = part.map(([at, v], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(v).toFixed(1)}`).join("");
        if (part.length > 1) {
          const floor = y(0).toFixed(1);
          node("path", { class: `area s${n + 1}`, d: `${path}L${x(part.at(-1)[0]).toFixed(1)} ${floor}L${x(part[0][0]).toFixed(1)} ${floor}Z` }, svg);
        }
        node("path", { class: `line s${n + 1}`, d: path }, svg);
      }
    });
    element.append(svg);
    hover(element, svg, lines, { x, format, width, start, seconds: span });
  }

  // A pause of the portal or the brokers is a gap, not a slope.
  function parts(points, gap) {
    const found = [];
    points.forEach((point, n) => {
      if (!n || point[0] - points[n - 1][0] > gap) found.push([]);
      found.at(-1).push(point);
    });
    return found;
  }

  function hover(element, svg, lines, scale) {
    const cross = node("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, svg);
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    element.append(tip);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = scale.start + (((event.clientX - box.left) * (scale.width / box.width) - LEFT) / (scale.width - LEFT - RIGHT)) * scale.seconds;
      const rows = [];
      let place = null;
      for (const line of lines) {
        if (!line.points.length) continue;
        const near = line.points.reduce((best, p) => (Math.abs(p[0] - at) < Math.abs(best[0] - at) ? p : best));
        place ??= near[0];
        rows.push(`${line.label} ${scale.format(near[1])}`);
      }
      if (place === null) return;
      const left = scale.x(place);
      cross.setAttribute("x1", left);
      cross.setAttribute("x2", left);
      cross.setAttribute("visibility", "visible");
      tip.textContent = `${clock(place, true)}   ${rows.join("   ")}`;
      tip.hidden = false;
      tip.style.left = `${Math.max(8, Math.min(left * (box.width / scale.width) - tip.offsetWidth / 2, element.clientWidth - tip.offsetWidth - 8))}px`;
    });
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      cross.setAttribute("visibility", "hidden");
    });
  }

  function clock(at, precise) {
    const options = { hour: "2-digit", minute: "2-digit", hour12: false };
    if (precise) options.second = "2-digit";
    return new Date(at * 1000).toLocaleTimeString([], options);
  }

  async function refresh() {
    const elements = [...document.querySelectorAll("[data-chart]")];
    if (!elements.length) return;
    const names = new Set(elements.flatMap((element) => parsed(element).map((each) => each.name)));
    const query = new URLSearchParams([["seconds", seconds], ...[...names].map((name) => ["s", name])]);
    const answer = await fetch(`/data/series?${query}`, { headers: { "X-Portal": "1" } });
    if (!answer.ok) return;
    const data = await answer.json();
    for (const element of elements) if (!element.matches(":hover")) draw(element, data);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-ranges] button");
    if (!button) return;
    seconds = Number(button.dataset.seconds);
    for (const each of button.parentElement.children) each.setAttribute("aria-pressed", each === button);
    refresh();
  });

  return { refresh };
})();
