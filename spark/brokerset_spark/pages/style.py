"""The looks of the pages: light and dark, large enough to be read at three in the morning."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --bg:#fff; --fg:#15181c; --dim:#59626e; --line:#d5dae0; --card:#f5f7f9;
  --red:#c4161c; --redbg:#fdeaea; --amber:#8f5a00; --amberbg:#fdf3dd; --green:#146c34; --greenbg:#e6f5ea;
  --e0:#bcd4ee; --e1:#c9e3d3; --e2:#ddd0ee; --e3:#cfdfe6; --e4:#e3dfc4; --e5:#d3d9f3; --mark:#15181c; }
@media (prefers-color-scheme: dark) { :root { --bg:#14171b; --fg:#e9edf1; --dim:#a2adb9;
--line:#353c45; --card:#1c2127;
  --red:#ff7b78; --redbg:#3f1719; --amber:#f3bf5b; --amberbg:#3a2c10; --green:#78d895; --greenbg:#15321f;
  --e0:#2a4a6e; --e1:#24523a; --e2:#493a66; --e3:#2f4853; --e4:#504b2a; --e5:#36406e; --mark:#e9edf1; } }
* { box-sizing: border-box }
body { margin:0 auto; max-width:1180px; padding:20px; background:var(--bg); color:var(--fg);
  font:16px/1.5 system-ui,sans-serif }
h1 { font-size:20px; margin:0 0 12px } h2 { font-size:17px; margin:30px 0 8px }
p { margin:6px 0 } .dim { color:var(--dim) } .num { text-align:right;
font-variant-numeric:tabular-nums; white-space:nowrap }
.verdict { padding:16px 18px; border-radius:8px; border-left:8px solid; font-size:20px;
font-weight:600; overflow-wrap:anywhere }
.verdict.error { background:var(--redbg); border-color:var(--red) }
.verdict.warning { background:var(--amberbg); border-color:var(--amber) }
.verdict.clean { background:var(--greenbg); border-color:var(--green) }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100% }
th,td { text-align:left; vertical-align:top; padding:6px 10px; border-bottom:1px solid var(--line) }
th { font-size:14px; color:var(--dim); font-weight:600 } td.error, td.lost { color:var(--red);
font-weight:600 }
td.warning { color:var(--amber); font-weight:600 } td.self { color:var(--dim) } td.url {
overflow-wrap:anywhere }
svg { width:100%; height:auto; background:var(--card); border-radius:8px; display:block }
svg text { fill:var(--fg); font:13px system-ui,sans-serif } svg .dim { fill:var(--dim) } svg .name {
font-weight:600 }
svg .red { fill:var(--red) } svg text.red { font-weight:600 }
.e0{fill:var(--e0)} .e1{fill:var(--e1)} .e2{fill:var(--e2)} .e3{fill:var(--e3)} .e4{fill:var(--e4)}
.e5{fill:var(--e5)}
.none { fill:var(--line) } .expired { fill:none; stroke:var(--dim); stroke-dasharray:4 4 }
.open { fill:url(#open) } .hatch { stroke:var(--fg); stroke-width:1.5; opacity:.45 }
.differs { fill:var(--red) } .differs-bar { fill:var(--red); opacity:.35 }
.axis { stroke:var(--line) } .edge { stroke:var(--mark); stroke-width:2 } .confirmed { fill:var(--green) }
@media print { body { max-width:none } }
"""
"""Inline CSS. Red is kept for what differs, is damaged or would be lost."""
