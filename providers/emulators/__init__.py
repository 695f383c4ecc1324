"""Rental companies played on this host, each behind its own wire format. What they share:

`estate`    the machines of one account: real processes, one SQLite file (`rows`: the types, `books`: the file)
`startup`   how long they take to come up
`market`    prices and supply
`meter`     the bill
`faults`    what goes wrong on request
`switches`  how the company behaves
`admin`     a test's own door, on its own port
`serving`   the process around it all
`wire`      what HTTP needs

An emulator adds the wire format and its company's habits.
"""
