"""The transcribed tables, checked by what the paper says about them elsewhere: averages, a sum, a
few cells."""

import pytest

from laconic.reproduce import paper


@pytest.mark.parametrize("label", paper.SPEEDUP)
def test_a_rows_average_is_the_one_the_paper_prints(label):
    known = [number.value for number in paper.SPEEDUP[label] if number.value is not None]
    assert sum(known) / len(known) == pytest.approx(paper.SPEEDUP_AVERAGE[label], abs=0.005 + 1e-9)
    assert len(paper.SPEEDUP[label]) == len(paper.SPEEDUP_COLUMNS)


def test_cells_of_table_1():
    assert paper.speedups("FMNIST MLP")["LAgg-A"] == paper.Number(9.80, 0.54)
    assert paper.speedups("CIFAR10 MLP")["SlowMo"] == paper.Number(4.81, 0.74)
    assert paper.speedups("ImageNet MLP")["Adam"] == paper.Number(2.00, 0.15)
    hyphens = [
        (row, c)
        for row, cells in paper.SPEEDUP.items()
        for c, x in enumerate(cells)
        if x.value is None
    ]
    assert hyphens == [("SlowMo", paper.SPEEDUP_COLUMNS.index("ImageNet ViT"))]


def test_the_table_of_times_as_printed():
    printed = """
        0.58 0.64 0.68 1.00 1.11 1.17  2.05 2.13 2.16 1.00 1.04 1.05
        3.93 4.02 4.04 1.00 1.02 1.03  7.71 7.83 7.86 1.00 1.02 1.02
        0.57 0.65 0.71 1.00 1.14 1.25  2.11 2.19 2.25 1.00 1.04 1.07
        4.19 4.25 4.32 1.00 1.01 1.03  8.51 8.60 8.66 1.00 1.01 1.02
    """
    ours = []
    for rows in (row for model in paper.TIMES.values() for row in model.values()):
        ours += [seconds for seconds, _ in rows] + [overhead for _, overhead in rows]
    assert ours == [float(word) for word in printed.split()]
    for rows in (row for model in paper.TIMES.values() for row in model.values()):
        base = rows[0][0]
        for seconds, overhead in rows:  # both are rounded to two decimals
            low, high = (seconds - 0.005) / (base + 0.005), (seconds + 0.005) / (base - 0.005)
            assert low - 0.005 <= overhead <= high + 0.005


def test_table_2_as_printed():
    printed = "Local SGD – 721 625 SlowMo 311 182 121 LOpt-A 119 121 89 LAgg-A 122 81 55"
    ours = []
    for label, row in paper.ROUNDS.items():
        ours += [label, *("–" if x.value is None else str(x.value) for x in row.values())]
    assert " ".join(ours) == printed
    assert all(list(row) == [4, 8, 16] for row in paper.ROUNDS.values())


def test_tuned_values_as_printed():
    printed = """
        8 4 valid 0.1 0.001 0.5 0.3 / 0.01 / 0.8
        8 4 train 0.1 0.01 0.3 0.1 / 1 / 0.95
        8 8 train 0.1 0.005 0.3 0.1 / 1 / 0.95
        8 16 train 0.1 0.005 0.1 0.1 / 1 / 0.95
        16 4 train 0.1 0.005 0.5 0.1 / 1 / 0.95
        32 4 train 0.1 0.005 0.5 0.3 / 1.66 / 0.9
        8 4 train 1 0.01 1 0.5 / 2 / 0.9
        8 4 train 1 0.001 0.3 0.1 / 1 / 0.85
    """
    ours = [
        f"{t.workers} {t.local_steps} {t.objective} {t.sgd} {t.adam} {t.local_sgd} "
        f"{' / '.join(t.slowmo)}"
        for t in paper.TUNED
    ]
    assert ours == [line.strip() for line in printed.strip().splitlines()]


def test_specs_name_each_value_where_it_belongs():
    assert paper.FMNIST_K32.specs() == (
        "local-sgd:gamma=0.5,label=Local SGD",
        "slowmo:gamma=0.3,alpha=1.66,beta=0.9,label=SlowMo",
        "sgd:alpha=0.1,label=SGD",
        "adam:alpha=0.005,label=Adam",
    )


def test_listings_hold_every_printed_row():
    assert len(paper.TOPK_LISTING.rows) == 6
    assert ("SlowMo", "0.01", "0.1", "5", "0.3") in paper.TOPK_LISTING.rows
    assert ("Local SGD", "0.01", "0.5", "–", "–") in paper.TOPK_LISTING.rows
    assert len(paper.FEDERATED_LISTING.rows) == 20
    assert ("FedAvg", "CIFAR-10 CNN", "100", "1", "–") in paper.FEDERATED_LISTING.rows
    for listing in (paper.TOPK_LISTING, paper.FEDERATED_LISTING):
        assert {len(row) for row in listing.rows} == {len(listing.headers)}
