"""Looking again and again at little cost, and acting once when a job stops moving.

    Watch(…).run() -> exit reason        the loop: look, judge, show, and on a trigger capture and report

What decides is pure (:mod:`triggers`); what remembers is bounded (:mod:`store`).
"""
