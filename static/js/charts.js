// Draws the figures of the page with plotly. Data come as JSON blocks, colours from the style sheet's custom properties.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function coloured(value) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.map(coloured);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
}

const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

async function draw() {
  for (const chart of document.querySelectorAll(".chart")) {
    const figure = coloured(JSON.parse(document.getElementById(chart.dataset.figure).textContent));
    figure.layout.font.family = getComputedStyle(document.body).fontFamily;
    await Plotly.react(chart, figure.data, figure.layout, config);
    chart.dataset.drawn = "";
  }
}

draw();
for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", draw);
