"""The style sheet of a report. Policies have the colours c0 to c6; tiers, providers and parts the fills t0 to t4.

Both sets were searched for colours that stay apart in each kind of colour blindness, on a light page and on a dark one;
`tests/simulator/test_report_colours.py` measures by how much.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5a6067;--paper:#fff;--card:#f6f7f8;--grid:#dfe2e5;
--c0:#1257ff;--c1:#d35313;--c2:#2e9e7d;--c3:#ce4fc3;--c4:#6e2c0f;--c5:#0a3f5b;--c6:#0d0d0d;
--t0:#c9760f;--t1:#2a8fd8;--t2:#5c1a78;--t3:#7b7f84;--t4:#0c3a22}
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ec;--soft:#a8afb7;--paper:#14171a;--card:#1d2125;--grid:#343a40;
--c0:#5a6dff;--c1:#f4ab20;--c2:#12a047;--c3:#b566ae;--c4:#ccbd9d;--c5:#04cdff;--c6:#e4fbff;
--t0:#f7a53b;--t1:#53b9ff;--t2:#a54bff;--t3:#f0f2f4;--t4:#5d7d6a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1248px;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.2em 0 .3em}section h2{margin-top:0}
p{margin:.2em 0 .6em}section p{color:var(--soft);font-size:.9rem}
main{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
section{background:var(--card);border-radius:8px;padding:14px;min-width:0}
svg{display:block;width:100%;height:auto}
.patterns{position:absolute;width:0;height:0}
.patterns rect{fill:var(--colour)}.patterns path{fill:none;stroke:var(--card);stroke-width:1.4}
svg text{fill:var(--soft);font:12.5px system-ui,sans-serif}
.grid{stroke:var(--grid);stroke-width:1;fill:none}
.line{fill:none;stroke:var(--colour);stroke-width:2;stroke-linejoin:round}
.mark,.dots{fill:var(--colour);stroke:var(--card);stroke-width:.7}
.area,.bar{fill:var(--colour);stroke:var(--card);stroke-width:.5}
.t1.area,.t1.bar{fill:url(#p1)}.t2.area,.t2.bar{fill:url(#p2)}
.t3.area,.t3.bar{fill:url(#p3)}.t4.area,.t4.bar{fill:url(#p4)}
.c0{--colour:var(--c0)}.c1{--colour:var(--c1)}.c2{--colour:var(--c2)}.c3{--colour:var(--c3)}
.c4{--colour:var(--c4)}.c5{--colour:var(--c5)}.c6{--colour:var(--c6)}
.t0{--colour:var(--t0)}.t1{--colour:var(--t1)}.t2{--colour:var(--t2)}.t3{--colour:var(--t3)}.t4{--colour:var(--t4)}
section .keys{color:var(--ink);display:flex;flex-wrap:wrap;gap:2px 16px}
.keys span{display:inline-flex;align-items:center;gap:6px}.key{width:34px;height:14px;flex:none}
table{border-collapse:collapse;table-layout:fixed;width:100%;font-size:.9rem;margin-bottom:1em}
th,td{padding:4px 0 4px 10px;text-align:right;vertical-align:top;border-bottom:1px solid var(--grid);
font-variant-numeric:tabular-nums}
th:first-child{width:24%;padding-left:0;text-align:left;font-weight:400}thead th{font-weight:600}
.options{max-width:640px}.options td{text-align:left}
@media(max-width:640px){svg text{font-size:15px}
.figures thead{display:none}.figures tr{display:block;padding:6px 0;border-bottom:1px solid var(--grid)}
.figures th,.figures td{border:0}.figures th:first-child{display:block;width:auto;font-weight:600}
.figures td{display:flex;justify-content:space-between;gap:12px;padding:1px 0}
.figures td::before{content:attr(data-policy);color:var(--soft)}}
"""
