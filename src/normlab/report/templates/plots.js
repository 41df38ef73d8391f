  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const colors = () => dark() ? {ink: "#e6edf3", grid: "#30363d"} : {ink: "#1b1f24", grid: "#e3e8ed"};
  const themed = layout => {
    const c = colors(), out = {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {...(layout.font || {}), color: c.ink},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: "#8b949e", activecolor: c.ink},
      margin: {l: 60, r: 20, t: layout.title ? 50 : 20, b: 50, ...(layout.margin || {})}, autosize: true};
    delete out.width; delete out.height;
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(k => /^[xy]axis\d*$/.test(k))]);
    for (const a of axes) out[a] = {gridcolor: c.grid, zerolinecolor: c.grid, linecolor: c.grid, automargin: true, exponentformat: "power", minexponent: 5, separatethousands: true, ...(layout[a] || {})};
    for (const a of axes) { out[a].gridcolor = c.grid; out[a].zerolinecolor = c.grid; }
    return out;
  };
  // Panels that stand beside each other on a desk stand below each other on a phone.
  const NARROW = 600;
  // A legend that takes many lines on a phone makes the figure higher, not the plot lower.
  const listed = (layout, data) => {
    if (innerWidth >= NARROW || layout.showlegend === false) return 0;
    const names = data.filter(t => t.showlegend !== false && t.name).map(t => 50 + 6.5 * t.name.length);
    const lines = names.reduce(([n, w], each) => w + each > innerWidth - 90 ? [n + 1, each] : [n, w + each], [1, 0])[0];
    return 19 * Math.max(0, lines - 2);
  };
  const stacked = (layout, box, data) => {
    const m = layout.meta || {};
    if (!m.panels || m.panels < 2 || innerWidth >= NARROW) { box.style.height = Number(box.dataset.height) + listed(layout, data) + "px"; return layout; }
    const step = m.height + m.gap, inner = m.panels * step - m.gap, out = {...layout};
    for (let i = 0; i < m.panels; i++) {
      const tag = i ? i + 1 : "", top = 1 - i * step / inner;
      out["xaxis" + tag] = {...layout["xaxis" + tag], domain: [0, 1], ...(m.x ? {title: {text: m.x, standoff: 4}} : {})};
      out["yaxis" + tag] = {...layout["yaxis" + tag], domain: [Math.max(0, top - m.height / inner), top], ...(m.y ? {title: {text: m.y}} : {})};
    }
    out.annotations = (layout.annotations || []).map((a, i) => i < m.panels ? {...a, x: 0, xanchor: "left", y: 1 - i * step / inner} : a);
    out.legend = {...(layout.legend || {}), y: -60 / inner, yanchor: "top"};
    box.style.height = (inner + 170) + "px";
    return out;
  };
  // A scheme keeps its hue on dark paper, and is lightened until it can be told from it (contrast 3).
  const light = v => v.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4).reduce((s, c, i) => s + c * [.2126, .7152, .0722][i], 0);
  const seen = colour => {
    if (Array.isArray(colour)) return colour.map(seen);
    if (typeof colour !== "string" || !/^#[0-9a-f]{6}$/i.test(colour) || !dark()) return colour;
    let v = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
    while (light(v) < .115) v = v.map(c => c + (255 - c) * .12);
    return "rgb(" + v.map(Math.round).join(",") + ")";
  };
  const inked = trace => {
    const out = {...trace};
    for (const part of ["line", "marker", "error_x", "error_y"]) if (trace[part] && trace[part].color !== undefined) out[part] = {...trace[part], color: seen(trace[part].color)};
    return out;
  };
