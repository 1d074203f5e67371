"""What ``info``, ``plan`` and ``bench`` share: find out what a path holds, and what reading it will cost.

``subject.py`` opens anything (an array, tokens, a headerless file with a guess); ``description.py`` says what it is;
``projection.py`` is the arithmetic of a run and ``forecast.py`` a whole run projected. It returns values, never
text: ``cli`` prints.
"""
