// Makes room for words behind the ends of bars: the narrower the plot, the more of the axis they take.
const shown = plot.inner_width;
if (shown > 0) {
  const {x, text} = source.data;
  let end = least;
  for (let i = 0; i < x.length; i++) {
    const share = (shift + 7 * text[i].length) / shown;
    if (share < 0.8) end = Math.max(end, x[i] / (1 - share));
  }
  range.end = end;
}
