"""The style sheet of a report. Policies have the colours c0 to c7, tiers and providers t0 to t3."""

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60666d;--paper:#fff;--card:#f6f7f8;--grid:#dfe2e5;
--c0:#0b62c4;--c1:#c2410c;--c2:#15803d;--c3:#7c3aed;--c4:#b4125f;--c5:#0e7490;--c6:#8a6100;--c7:#5b6470;
--t0:#e08a1e;--t1:#2a78b8;--t2:#5d5fb5;--t3:#7a7f86}
@media(prefers-color-scheme:dark){:root{--ink:#e7e9ec;--soft:#a2a9b1;--paper:#14171a;--card:#1d2125;--grid:#343a40;
--c0:#6cb0ff;--c1:#ff9a5c;--c2:#5fd08a;--c3:#b79bff;--c4:#ff7fb6;--c5:#4fc7de;--c6:#e0b64a;--c7:#aab2bb;
--t0:#f0a84a;--t1:#5aa7e6;--t2:#9a9cf0;--t3:#9aa1a9}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1120px;background:var(--paper);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.2em 0 .3em}section h2{margin-top:0}
p{margin:.2em 0 .6em}section p{color:var(--soft);font-size:.9rem}
main{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
section{background:var(--card);border-radius:8px;padding:14px;min-width:0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:12.5px system-ui,sans-serif}
.grid{stroke:var(--grid);stroke-width:1;fill:none}
.line{fill:none;stroke:var(--colour);stroke-width:2;stroke-linejoin:round}
.dashed{stroke-dasharray:5 4}
.area{fill:var(--colour);fill-opacity:.75;stroke:none}
.dots{fill:none;stroke:var(--colour);stroke-width:5;stroke-linecap:round;stroke-opacity:.6}
.bar{fill:var(--colour)}
.c0{--colour:var(--c0)}.c1{--colour:var(--c1)}.c2{--colour:var(--c2)}.c3{--colour:var(--c3)}
.c4{--colour:var(--c4)}.c5{--colour:var(--c5)}.c6{--colour:var(--c6)}.c7{--colour:var(--c7)}
.t0{--colour:var(--t0)}.t1{--colour:var(--t1)}.t2{--colour:var(--t2)}.t3{--colour:var(--t3)}
section .keys{color:var(--ink);display:flex;flex-wrap:wrap;gap:2px 14px}
.keys span::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em;
background:var(--colour)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap;
font-variant-numeric:tabular-nums}
th:first-child{text-align:left;font-weight:400}thead th{font-weight:600}
"""
