"""What each tool can do, tried: one module per tool, one function per row of the table in docs/compare.md.

rows.py       the questions, in the order of the table
cell.py       an answer (yes, in part, no) with what was seen
networks.py   tiny networks and pictures with random weights, the same for every tool
ours.py, with_captum.py, with_zennit.py, with_grad_cam.py, with_shap.py
"""
