"""The read model of a server: what the topics say, kept on disk and followed live, for lists and pages (DESIGN §9).

It folds what every partition holds and never fires, owns or acknowledges anything; any number of servers each keep one.
"""
