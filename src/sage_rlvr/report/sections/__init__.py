"""The full report by sections: each module makes the parts of a few; `report/book.py` puts them in order."""
