"""N-Triples as RDF 1.1 defines them, and what is said of lines that are none."""

import gzip
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shorthaul as sh
from shorthaul.errors import GraphFileError
from shorthaul.graphs import RelationalGraph
from shorthaul.graphs.readers.n_triples import PROBLEMS, emit_n_triples_reader, read_n_triples
from shorthaul.graphs.readers.plain_readers import parse_plain_triples

TEXT = r"""# people
<a:Ada> <a:knows> <a:Bob> .

<a:Bob><a:knows>_:b1. # a comment
_:b1 <a:name> "Bob \"B\" \u00C9mile\t\\n" .
	<a:Ada> <a:name> "Ada"@en-GB .
<a:Ada> <a:age> "36"^^<x:int> .
<a:Ada> <a:knows> <a:Bob> .
<a:\u00e9> <a:knows> <a:é> .
"""
NAMES = [
    "a:Ada",
    "a:Bob",
    "_:b1",
    '"Bob \\"B\\" Émile\t\\\\n"',
    '"Ada"@en-GB',
    '"36"^^<x:int>',
    "a:é",
]
MALFORMED = [
    ("a b c .", 1, "expected a subject, <IRI> or _:blank, at column 1."),
    ('"x" <b> <c> .', 1, "expected a subject, <IRI> or _:blank, at column 1."),
    ("<a> _:b <c> .", 1, "expected a predicate, <IRI>, at column 5."),
    ("<a> <b> .", 1, 'expected an object, <IRI>, _:blank or "literal", at column 9.'),
    ("<a> <b>", 1, 'expected an object, <IRI>, _:blank or "literal", at column 8.'),
    ("<a> <b> <c>", 1, "expected a '.' after the object, at column 12."),
    ("<a> <b> <c> <graph> .", 1, "expected a '.' after the object, at column 13."),
    ("<a> <b> <c> . <d>", 1, "expected nothing but a comment after the '.', at column 15."),
    ("<a> <b> <c .", 1, "expected a character that an IRI may have, at column 11."),
    ("<a", 1, "expected a '>' to end the IRI, at column 3."),
    ("<a> <b> <c\\n> .", 1, 'expected an escape such as \\n, \\" or \\u00E9, at column 11.'),
    ('<a> <b> "c\\x" .', 1, 'expected an escape such as \\n, \\" or \\u00E9, at column 11.'),
    ('<a> <b> "\\uD800" .', 1, 'expected an escape such as \\n, \\" or \\u00E9, at column 10.'),
    ('<a> <b> "\\U00110000" .', 1, 'expected an escape such as \\n, \\" or \\u00E9, at column 10.'),
    ('<a> <b> "\\u12', 1, 'expected an escape such as \\n, \\" or \\u00E9, at column 10.'),
    ('<a> <b> "c .', 1, "expected a '\"' to end the literal, at column 13."),
    ('<a> <b> "c"@ .', 1, "expected a language such as @en or @en-GB, at column 13."),
    ('<a> <b> "c"@en- .', 1, "expected a language such as @en or @en-GB, at column 16."),
    ('<a> <b> "c"^<d> .', 1, "expected a datatype as ^^<IRI>, at column 12."),
    ('<a> <b> "c"^^d .', 1, "expected a datatype as ^^<IRI>, at column 14."),
    ("<a> <b> _ .", 1, "expected a blank node such as _:b1, at column 9."),
    ("<a> <b> <c> .\n\n# x\n<a> b <c> .", 4, "expected a predicate, <IRI>, at column 5."),
]


def write(tmp_path, text):
    path = tmp_path / "some.nt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture(params=["generated", "torch"])
def both_ways(request):
    with sh.settings.override(kernels=request.param):
        yield request.param


def check_text(graph: RelationalGraph) -> None:
    assert list(graph.node_names) == NAMES
    assert [each.name for each in graph.relations] == ["a:knows", "a:name", "a:age"]
    assert graph.source.tolist() == [0, 1, 2, 0, 0, 0, 6]
    assert graph.target.tolist() == [1, 2, 3, 4, 5, 1, 6]
    assert graph.relation.tolist() == [0, 0, 1, 1, 2, 0, 0]
    assert graph.skipped_lines == 0


def test_terms_of_every_kind(tmp_path, both_ways) -> None:
    check_text(RelationalGraph.read(write(tmp_path, TEXT)))


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request):
    """As many readers, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("block_bytes", [1, 16, 100])
def test_blocks_of_any_size_make_the_same_graph(tmp_path, threads, block_bytes) -> None:
    check_text(read_n_triples(write(tmp_path, TEXT), block_bytes=block_bytes))


def test_lines_are_counted_over_blocks(tmp_path, threads, caplog) -> None:
    good = [f"<n:{n % 50}> <r:{n % 3}> <n:{n * 7 % 90}> ." for n in range(400)]
    lines = [*good[:250], "<n:1> nonsense", *good[250:], "", "<n:1> <r:1> ."]
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(
        GraphFileError, match=r", line 251: expected a predicate, <IRI>, at column 7"
    ):
        read_n_triples(path, block_bytes=64)
    with caplog.at_level(logging.WARNING, "shorthaul"):
        graph = read_n_triples(path, strict=False, block_bytes=64)
    assert "2 malformed lines were skipped, the first is line 251" in caplog.text
    plain = parse_plain_triples(good)
    assert list(graph.node_names) == list(plain.nodes)
    rows = zip(graph.source.tolist(), graph.relation.tolist(), graph.target.tolist(), strict=True)
    assert list(rows) == plain.triples


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_compression(tmp_path, both_ways, end) -> None:
    packed = gzip.compress(TEXT.replace("\n", end).encode().removesuffix(end.encode()))
    check_text(RelationalGraph.read(write(tmp_path, packed)))


def test_literals_can_be_left_out(tmp_path, both_ways) -> None:
    graph = RelationalGraph.read(write(tmp_path, TEXT), literals=False)
    assert list(graph.node_names) == ["a:Ada", "a:Bob", "_:b1", "a:é"]
    assert graph.num_edges == 4


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_triples(tmp_path, both_ways, text) -> None:
    graph = RelationalGraph.read(write(tmp_path, text))
    assert (graph.num_nodes, graph.num_edges, graph.num_relations) == (0, 0, 0)
    assert graph.by_target().pointers.tolist() == [0]


@pytest.mark.parametrize(("text", "line", "problem"), MALFORMED)
def test_a_malformed_line_is_named(tmp_path, text, line, problem) -> None:
    path = write(tmp_path, text)
    with pytest.raises(GraphFileError) as caught:
        RelationalGraph.read(path)
    assert str(caught.value) == f"{path}, line {line}: {problem}"
    assert caught.value.line == line


def test_every_problem_has_its_words_and_its_test() -> None:
    tested = {problem.rpartition(", at column")[0] for _, _, problem in MALFORMED}
    assert tested == set(PROBLEMS[1:])
    names = emit_n_triples_reader().headers()["shorthaul/graphs/readers/n_triples.h"]
    assert names.partition("enum Problem")[2].partition("}")[0].count(",") == len(PROBLEMS)


@pytest.mark.parametrize("text", [text for text, _, _ in MALFORMED])
def test_a_malformed_line_is_malformed_for_the_plain_reader_too(tmp_path, text) -> None:
    with sh.settings.override(kernels="torch"), pytest.raises(GraphFileError, match=", line "):
        RelationalGraph.read(write(tmp_path, text))


def test_malformed_lines_are_skipped_and_counted(tmp_path, both_ways, caplog) -> None:
    path = write(tmp_path, "<a> <b> <c> .\nnonsense\n<c> <b> <a> .\n<a> .\n")
    with caplog.at_level(logging.WARNING, "shorthaul"):
        graph = RelationalGraph.read(path, strict=False)
    assert (graph.num_edges, graph.skipped_lines) == (2, 2)
    assert "some.nt: 2 malformed lines were skipped, the first is line 2" in caplog.text


def test_millions_of_names_cost_no_collisions(tmp_path) -> None:
    lines = [f"<n:{n}> <r:{n % 7}> <n:{n + 1}> ." for n in range(30_000)]
    graph = RelationalGraph.read(write(tmp_path, "\n".join(lines)))
    assert graph.num_nodes == 30_001
    assert graph.source.tolist() == list(range(30_000))
    assert graph.node_names[12_345] == "n:12345"


PIECES = st.sampled_from(
    [
        "<a>",
        "<b:é>",
        '"',
        "\\",
        "u00e9",
        "_:x",
        "_:y.",
        ".",
        " ",
        "#",
        '"c"',
        "@en",
        "-1",
        "^^",
        "<",
    ]
)


@given(st.lists(st.lists(PIECES, max_size=7).map("".join), max_size=6))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_as_the_plain_reader_reads_it(tmp_path_factory, lines) -> None:
    path = write(tmp_path_factory.getbasetemp(), "\n".join(lines))
    graph = read_n_triples(path, strict=False, block_bytes=16)
    plain = parse_plain_triples(lines)
    assert graph.skipped_lines == len(plain.malformed)
    assert list(graph.node_names) == list(plain.nodes)
    rows = zip(graph.source.tolist(), graph.relation.tolist(), graph.target.tolist(), strict=True)
    assert list(rows) == plain.triples


TERMS = st.sampled_from(["<a>", "<\\u00e9>", "_:x", '"c\\t"', '"\\\\u00e9"@en', '"d"^^<a>'])


@given(st.lists(st.tuples(TERMS, TERMS, TERMS), max_size=6))
@settings(max_examples=100, deadline=None)
def test_triples_are_read_as_the_plain_reader_reads_them(tmp_path_factory, triples) -> None:
    lines = [" ".join([*each, "."]) for each in triples]
    path = write(tmp_path_factory.getbasetemp(), "\n".join(lines))
    graph, plain = read_n_triples(path, strict=False), parse_plain_triples(lines)
    assert list(graph.node_names) == list(plain.nodes)
    assert graph.skipped_lines == len(plain.malformed)
    assert graph.num_edges == len(plain.triples)
