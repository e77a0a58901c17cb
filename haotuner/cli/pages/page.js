"use strict";
(async () => {
  const byId = (id) => document.getElementById(id);
  const status = byId("status"), main = byId("main"), tabs = byId("tabs");
  const ROWS = 400; // of a figure's data as a table

  // Every text of the data becomes a node's text: nothing of it is ever read as markup.
  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Plotly reads some tags in texts. Ours are data, with line ends as the only form.
  function literal(value) {
    if (typeof value === "string") {
      return value.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\n/g, "<br>");
    }
    if (Array.isArray(value)) return value.map(literal);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, key === "hovertemplate" ? item : literal(item)]));
  }

  const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const merged = (axis) => ({
    gridcolor: styled("--grid"), linecolor: styled("--line"), zerolinecolor: styled("--line"), automargin: true,
    ...axis, title: { standoff: 10, font: { size: window.innerWidth < 600 ? 12 : 14 }, ...(axis.title || {}) },
  });

  // Long labels of bars leave no room for the bars, and often differ at their ends; whole ones stand beside the pointer.
  function shortened(figure) {
    const most = window.innerWidth < 600 ? 18 : 48, labels = figure.data.filter((trace) => trace.type === "bar").flatMap((trace) => trace.y);
    if (!labels.some((label) => label.length > most)) return {};
    const values = [...new Set(labels)];
    return { tickmode: "array", tickvals: literal(values), ticktext: literal(values.map((label) => label.length > most ? `${label.slice(0, most / 2 - 1)}…${label.slice(-most / 2)}` : label)) };
  }

  // The range is known once a figure is drawn; its ticks follow every zoom and every width.
  function marked(plot) {
    const changes = {}, narrow = window.innerWidth < 600;
    for (const [name, most] of [["x", plot.clientWidth / (narrow ? 62 : 84)], ["y", plot.clientHeight / 44]]) {
      const key = `${name}axis`, axis = plot._fullLayout[key], own = plot.report.layout[key];
      if (!["log", "linear"].includes(axis.type) || own.visible === false) continue;
      const whole = !own.unit && plot.report.data.every((trace) => trace[name].every((value) => value === null || Number.isInteger(value)));
      const ticks = ticksOf(axis.type, axis.range, Math.max(2, Math.floor(most)), own.unit, whole);
      if (ticks && JSON.stringify(ticks.ticktext) !== JSON.stringify(axis.ticktext)) for (const [word, value] of Object.entries(ticks)) changes[`${key}.${word}`] = value;
    }
    if (Object.keys(changes).length > 0) Plotly.relayout(plot, changes);
  }

  function layoutOf(figure, revision) {
    const layout = literal(figure.layout), narrow = window.innerWidth < 600;
    return {
      ...layout, xaxis: merged(layout.xaxis), yaxis: { ...merged(layout.yaxis), ...shortened(figure) }, uirevision: revision,
      height: layout.height || (narrow ? 330 : 420), margin: { l: 50, r: 14, t: 34, b: 44 }, showlegend: false, bargap: 0.3,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13, color: styled("--text") },
      hoverlabel: { bgcolor: styled("--panel"), bordercolor: styled("--line"), font: { color: styled("--text") }, align: "left", namelength: 40 },
      modebar: { color: styled("--quiet"), activecolor: styled("--accent"), bgcolor: "rgba(0,0,0,0)" },
    };
  }
  // Buttons are listed, because one of Plotly's own sends the data to its makers' server.
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtons: buttons };

  function tableOf(table, name) {
    const numeric = table.head.map((_, at) => table.rows.every((row) => /^(|-|and .*|[\d.,]+ ?(%|x|µs|ms|s)?)$/.test(row[at] ?? "")));
    const head = element("tr", {}, ...table.head.map((text, at) => element("th", numeric[at] && table.head.length > 2 ? { scope: "col", class: "number" } : { scope: "col" }, text)));
    const body = table.rows.map((row) => element("tr", {}, ...row.map((text, at) => element("td", { class: numeric[at] && row.length > 2 ? "number" : String(text).length < 32 ? "short" : "long" }, String(text)))));
    const made = element("table", { "aria-label": name }, element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${name}, table` }, made);
  }

  function rowsOf(figure) {
    const titled = (name) => [figure.layout[`${name}axis`].title?.text || name, figure.layout[`${name}axis`].unit].filter(Boolean).join(", ");
    const head = ["series", titled("x"), titled("y"), "text"], rows = [];
    for (const trace of figure.data) {
      if (trace.hoverinfo === "skip") continue;
      const flat = trace.type === "heatmap"
        ? trace.y.flatMap((y, up) => trace.x.map((x, across) => [x, y, trace.text[up][across]]))
        : trace.x.map((x, at) => [x, trace.y[at], trace.text[at]]);
      for (const row of flat) if (row[0] !== null) rows.push([trace.name, ...row.map((cell) => String(cell ?? ""))]);
    }
    const more = rows.length - ROWS;
    return { head, rows: more > 0 ? [...rows.slice(0, ROWS), [`and ${more} more`, "", "", ""]] : rows };
  }

  const colourOf = (trace) => [trace.marker && trace.marker.color, trace.line && trace.line.color].find((colour) => typeof colour === "string") || "#7f8894";

  function legendOf(plot, figure) {
    const list = element("ul", { class: "legend", "aria-label": "Series; a button hides or shows one" });
    figure.data.forEach((trace, index) => {
      if (trace.showlegend === false || trace.type === "heatmap" || figure.layout.showlegend === false) return;
      const button = element("button", { type: "button", "aria-pressed": "true" }, element("span", { class: "swatch" }), trace.name);
      button.firstChild.style.background = colourOf(trace);
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!shown));
        Plotly.restyle(plot, { visible: shown ? "legendonly" : true }, [index]);
      });
      list.append(element("li", {}, button));
    });
    return list.childElementCount ? list : null;
  }

  function moved(range, by, scale) {
    const [low, high] = range.map(Number), middle = (low + high) / 2 + by * (high - low);
    return [middle - (high - low) * scale / 2, middle + (high - low) * scale / 2];
  }
  function steer(plot, event) {
    const steps = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15], "+": [0, 0, 0.7], "=": [0, 0, 0.7], "-": [0, 0, 1 / 0.7] };
    if (event.target !== plot || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "0" || event.key === "Home") {
      const whole = Object.entries(plot.report.layout).filter(([name]) => /^[xy]axis$/.test(name));
      Plotly.relayout(plot, Object.fromEntries(whole.map(([name, own]) => own.range ? [`${name}.range`, [...own.range]] : [`${name}.autorange`, own.autorange || true])));
    } else if (steps[event.key]) {
      const [x, y, scale = 1] = steps[event.key], full = plot._fullLayout;
      Plotly.relayout(plot, { "xaxis.range": moved(full.xaxis.range, x, scale), "yaxis.range": moved(full.yaxis.range, y, scale) });
    } else return;
    event.preventDefault();
  }

  let report = JSON.parse(await unpacked("data")), page = 0;
  const chosen = {}; // by title of a page

  function panelOf(owner, panel, choice) {
    const figure = panel.figures[choice] || panel.figures[""], table = panel.tables[choice] || panel.tables[""];
    const name = choice ? `${panel.title}, ${choice}` : panel.title;
    const section = element("section", { "aria-label": name }, element("h2", {}, panel.title), element("p", {}, panel.about));
    const missing = panel.missing[choice] || panel.missing[""];
    if (figure) {
      const plot = element("div", { class: "plot", tabindex: "0", role: "group", "aria-label":
        `${name}: figure of ${figure.data.length} series. Plus and minus zoom, arrows move, 0 shows all. The data follow as a table.` });
      plot.report = figure;
      const legend = legendOf(plot, figure), data = element("details", {}, element("summary", {}, "Data as a table"));
      data.addEventListener("toggle", () => { if (data.open && data.childElementCount === 1) data.append(tableOf(rowsOf(figure), name)); });
      section.append(...(legend ? [legend] : []), plot, data);
      plot.addEventListener("keydown", (event) => steer(plot, event));
      plot.draw = () => {
        Plotly.react(plot, literal(plot.report.data), layoutOf(plot.report, `${owner.title} ${name}`), config);
        const named = () => plot.querySelectorAll("[role=toolbar]").forEach((bar) => bar.setAttribute("aria-label", `Tools of ${name}`));
        named();
        plot.removeAllListeners("plotly_afterplot");
        plot.on("plotly_afterplot", () => { named(); marked(plot); });
        marked(plot);
      };
    }
    if (table) section.append(tableOf(table, name));
    if (missing) section.append(element("p", { class: "missing" }, (figure || table ? "Not shown: " : "No data: ") + missing));
    if (!figure && !table && !missing) section.append(element("p", { class: "missing" }, "No data of this choice."));
    section.append(element("p", { class: "source" }, `Source: ${panel.source || "none"}`));
    section.series = JSON.stringify([name, missing, figure && figure.data.map((trace) => trace.name), Boolean(table)]);
    return section;
  }

  function drawn() {
    const owner = report.pages[page];
    if (!owner.choices.includes(chosen[owner.title])) chosen[owner.title] = owner.choices[0] || "";
    const parts = [];
    if (owner.choices.length > 0) {
      const select = element("select", { id: "choice" }, ...owner.choices.map((text) => element("option", { value: text }, text)));
      select.value = chosen[owner.title];
      select.addEventListener("change", () => { chosen[owner.title] = select.value; drawn(); byId("choice").focus(); });
      parts.push(element("div", { class: "choice" }, element("label", { for: "choice" }, owner.noun || "choice"), select));
    }
    parts.push(...owner.panels.map((panel) => panelOf(owner, panel, chosen[owner.title])));
    for (const plot of main.querySelectorAll(".plot")) Plotly.purge(plot);
    main.replaceChildren(...parts);
    main.setAttribute("aria-labelledby", `tab-${page}`);
    for (const plot of main.querySelectorAll(".plot")) plot.draw();
  }

  // Of a run that goes on: what has the same series is drawn again where it stands, so that zoom and open tables stay.
  function refreshed() {
    const owner = report.pages[page], sections = [...main.querySelectorAll("section")];
    const select = byId("choice"), choices = select ? [...select.options].map((option) => option.value) : [];
    if (JSON.stringify(choices) !== JSON.stringify(owner.choices) || sections.length !== owner.panels.length) return drawn();
    owner.panels.forEach((panel, at) => {
      const section = panelOf(owner, panel, chosen[owner.title]), old = sections[at];
      const plot = old.querySelector(".plot"), newer = section.querySelector(".plot");
      if (old.series === section.series && plot && newer) {
        plot.report = newer.report;
        plot.draw();
        const tables = [old, section].map((part) => part.querySelector(":scope > .scroll"));
        if (tables[0] && tables[1]) tables[0].firstChild.replaceWith(tables[1].firstChild);
      } else {
        if (plot) Plotly.purge(plot);
        old.replaceWith(section);
        if (newer) newer.draw();
      }
    });
    return undefined;
  }

  const anchor = (title) => title.toLowerCase().replace(/[^a-z]+/g, "-");
  function show(index, focus) {
    page = index;
    [...tabs.children].forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
    });
    if (focus) tabs.children[index].focus();
    tabs.children[index].scrollIntoView({ block: "nearest", inline: "nearest" });
    history.replaceState(null, "", `#${anchor(report.pages[index].title)}`);
    drawn();
  }
  function tabbed() {
    tabs.replaceChildren(...report.pages.map((owner, index) => {
      const tab = element("button", { type: "button", role: "tab", id: `tab-${index}`, "aria-controls": "main" }, owner.title);
      tab.addEventListener("click", () => show(index));
      return tab;
    }));
  }
  tabs.addEventListener("keydown", (event) => {
    const count = report.pages.length, to = { ArrowRight: page + 1, ArrowLeft: page - 1, Home: 0, End: count - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show((to + count) % count, true);
  });
  const requested = () => Math.max(0, report.pages.findIndex((owner) => `#${anchor(owner.title)}` === location.hash));

  const script = document.createElement("script");
  script.textContent = await unpacked("library");
  document.head.append(script);
  byId("title").textContent = report.title;
  status.textContent = report.status || `haotuner ${report.haotuner}; this file needs no network`;
  tabbed();
  show(requested());
  addEventListener("hashchange", () => { if (requested() !== page) show(requested()); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawn);

  if (document.body.dataset.live) {
    const events = new EventSource(document.body.dataset.live);
    events.onmessage = (event) => {
      const titles = JSON.stringify(report.pages.map((owner) => owner.title)), place = report.pages[page].title;
      report = JSON.parse(event.data);
      status.textContent = report.status;
      const now = report.pages.findIndex((owner) => owner.title === place), focused = document.activeElement && document.activeElement.id;
      if (JSON.stringify(report.pages.map((owner) => owner.title)) !== titles) { tabbed(); show(Math.max(0, now)); } else refreshed();
      if (focused && byId(focused)) byId(focused).focus();
    };
    events.onerror = () => { status.textContent = `${report.status}. The watch does not answer: it was ended, or it will be asked again.`; };
  }
  document.body.dataset.ready = "yes";
})().catch((error) => {
  document.getElementById("status").textContent = `This browser cannot draw the report (${error.message}). It needs Chrome 80, Firefox 113, Safari 16.4 or newer.`;
  throw error;
});
