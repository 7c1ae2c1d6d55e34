"""hangdoctor: is it hung, slow, or ready, and who holds it up?"""

__version__ = "0.1.0"
