"""Suites that a backend must pass, and what they need to run: shipped, so that all can run them.

    from strandline.conformance.runner import certify

    board = certify(MyFixture)      # see strandline.conformance.fixture.BackendFixture
    print(board.level, board.faults)

This front door is empty: pytest loads a plugin behind it wherever Strandline is installed.
"""
