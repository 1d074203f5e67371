"""What a corpus's documents are like, for ``lowtide info --documents``.

One idea: the same index that training uses; where there is none yet, it is built here and kept, so that looking first
costs a run nothing later.
"""

from __future__ import annotations

from lowtide.reading.documents.boundaries import required_marks
from lowtide.reading.documents.boundary_index import Progress, boundary_index
from lowtide.reading.documents.document_counts import DocumentCounts, count_documents
from lowtide.survey.subject import Opening, Subject, opened
from lowtide.tokens import Tokens


def survey_documents(
    subject: Subject, opening: Opening, *, eot: int | None, bos: int | None, window: int, progress: Progress = None
) -> tuple[str, DocumentCounts]:
    """What tells the documents apart, in a word or two, and their counts."""
    with opened(subject.layout, opening) as data:
        if not isinstance(data, Tokens):
            raise ValueError(
                f"{subject.paths[0]}: expected tokens for --documents, got an array of shape {subject.layout.shape}. "
                "Leave --documents out."
            )
        data.eot = subject.layout.eot if eot is None else eot
        data.bos = subject.layout.bos if bos is None else bos
        marks = required_marks(data)
        index = boundary_index(data, marks, progress)
        return str(marks), count_documents(index, data.first, data.last, window)
