"""What the page looks like: one column, the reader's own fonts, light or dark as the reader has it, light on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2126; --soft: #5b6670; --line: #dde1e5; --paper: #ffffff; --track: #eceff1; --shade: #f6f7f8;
  --weights: #0b6aa8; --activations: #d9822b; --in: #7a8fa3; --out: #2f7d5c; --share: #7a4ea3;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ink: #e3e6e9; --soft: #9aa5af; --line: #343b42; --paper: #15181b; --track: #272d33; --shade: #1d2125;
    --weights: #57aee6; --activations: #eda456; --in: #93a7b9; --out: #5dba92; --share: #b48ad9;
  }
}
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .35rem; font-weight: 650; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.lead { color: var(--soft); font-size: 1.05rem; }
.warning { border-left: 3px solid var(--activations); padding: .5rem 1rem; background: var(--shade); }
.headline { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.6rem 0 .5rem; padding: 0; }
.headline div { flex: 1 1 12rem; padding: .8rem 1rem .9rem; background: var(--shade); }
.headline div { border-left: 3px solid var(--weights); }
.headline dt { color: var(--soft); font-size: .85rem; }
.headline dd { margin: 0; font-size: 1.55rem; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
.headline dd.note { font-size: .88rem; font-weight: 400; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 60%; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { padding: .32rem .9rem .32rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
tfoot th, tfoot td { font-weight: 600; border-bottom: 0; }
.number { text-align: right; white-space: nowrap; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .88em; overflow-wrap: anywhere; }
pre { background: var(--shade); padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.45; }
summary { cursor: pointer; }
figure { margin: .8rem 0 1.4rem; }
figure svg { display: block; width: 100%; min-width: 44rem; height: auto; }
svg text { fill: var(--ink); font-size: 12px; }
svg .head { font-size: 13px; font-weight: 600; }
svg .note { fill: var(--soft); }
svg .value { font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg .last { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .name { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
svg .track { fill: var(--track); }
svg .weights { fill: var(--weights); } svg .activations { fill: var(--activations); }
svg .channels-in { fill: var(--in); } svg .channels-out { fill: var(--out); } svg .share { fill: var(--share); }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
svg .border { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .curve { fill: none; stroke: var(--weights); stroke-width: 1.75; stroke-linejoin: round; }
svg .point { fill: var(--weights); }
@media print {
  body { padding: 0; max-width: none; font-size: 10.5pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  figure svg { min-width: 0; }
  figure, tr, .headline { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
  pre { white-space: pre-wrap; }
}
"""
