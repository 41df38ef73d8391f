"""What is wrong with the texts of the plots on a page that a browser shows: cut, outside the page, or on each other."""

TROUBLE = """() => {
  const found = [], wide = document.documentElement.clientWidth;
  const box = e => e.getBoundingClientRect();
  for (const plot of document.querySelectorAll(".plot")) {
    const label = plot.getAttribute("aria-label") || "", frame = box(plot);
    const name = label.slice(0, 40);
    const other = ".hoverlayer, .trace, .heatmaplayer, .hm, .modebar";
    const texts = [...plot.querySelectorAll("svg text")]
      .filter(t => t.textContent.trim() && !t.closest(other) && box(t).width > 0);
    for (const t of texts) {
      const b = box(t), words = t.textContent.slice(0, 40);
      const beyond = Math.max(frame.left - b.left, b.right - frame.right, frame.top - b.top, b.bottom - frame.bottom);
      if (beyond > 2) found.push(`${name}: "${words}" is cut`);
      if (b.left < -1 || b.right > wide + 1) found.push(`${name}: "${words}" is outside the page`);
    }
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const a = box(texts[i]), b = box(texts[j]);
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const [one, two] = [texts[i], texts[j]].map(t => t.textContent.slice(0, 24));
      if (x > 2 && y > 3) found.push(`${name}: "${one}" and "${two}" overlap`);
    }
  }
  for (const strip of document.querySelectorAll(".strip")) {
    const ticks = [...strip.querySelectorAll(".ticks span")], name = strip.textContent.slice(0, 40);
    for (const t of ticks) if (box(t).left < -1 || box(t).right > wide + 1) found.push(`${name}: "${t.textContent}" is cut`);
    for (let i = 0; i < ticks.length; i++) for (let j = i + 1; j < ticks.length; j++)
      if (Math.min(box(ticks[i]).right, box(ticks[j]).right) - Math.max(box(ticks[i]).left, box(ticks[j]).left) > 1)
        found.push(`${name}: "${ticks[i].textContent}" and "${ticks[j].textContent}" overlap`);
  }
  const reach = document.documentElement.scrollWidth;
  if (reach > wide) found.push(`the page is ${reach} wide`);
  return found;
}"""


def trouble(tab):
    """A list of sentences; empty where every label can be read."""
    tab.wait_for_timeout(300)  # plotly moves margins after it has drawn
    return tab.evaluate(TROUBLE)
