
const {start, end} = plot.x_range;
const {left, right, short} = source.data;
const per = plot.inner_width / (end - start);
const text = [], x = [];
for (let i = 0; i < left.length; i++) {
  const a = Math.max(left[i], start), b = Math.min(right[i], end);
  const room = Math.floor((b - a) * per / 6.6);
  text.push(room >= short[i].length ? short[i] : "");
  x.push((a + b) / 2);
}
source.data = {...source.data, text, x};
