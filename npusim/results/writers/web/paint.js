"use strict";
// The colours of charts are those of the page, in the light and in the dark.
const paintCharts = () => {
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, dim, line, paper] = ["--fg", "--dim", "--line", "--bg"].map(style);
  const of = {
    axis: {axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: dim,
           major_tick_line_color: dim, minor_tick_line_color: dim},
    grid: {grid_line_color: line},
    text: {text_color: ink},
    paper: {background_fill_color: paper},
    stroke: {line_color: ink},
  };
  for (const document_ of window.Bokeh?.documents ?? [])
    for (const model of document_.all_models)
      for (const tag of model.tags ?? [])
        if (tag in of) model.setv(of[tag]);
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintCharts);
