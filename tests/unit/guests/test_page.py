"""Tables between the marks of a page."""

from linkpass_lab.guests.page import BEGIN, END, put


def test_page_that_is_missing_gets_a_title_and_the_tables(tmp_path):
    put(tmp_path / "new.md", "Title", "| a |")
    assert (tmp_path / "new.md").read_text() == f"# Title\n\n{BEGIN}\n\n| a |\n{END}\n"


def test_page_keeps_the_words_around_its_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Own title\n\nbefore\n\n{BEGIN}\n\nold\n{END}\n\nafter \\1\n")
    put(page, "Title", r"new \g<0>")
    assert page.read_text() == f"# Own title\n\nbefore\n\n{BEGIN}\n\nnew \\g<0>\n{END}\n\nafter \\1\n"


def test_page_without_marks_gets_the_tables_at_its_end(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Own title\n\nwords\n\n\n")
    put(page, "Title", "t")
    assert page.read_text() == f"# Own title\n\nwords\n\n{BEGIN}\n\nt\n{END}\n"
