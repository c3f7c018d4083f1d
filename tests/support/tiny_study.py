"""The file of a study that takes a second: two rates on the digits."""

EXPERIMENT = """
name = "tiny"
rounds = 2
[data]
name = "digits"
clients = 10
[model]
name = "linear"
[client]
optimizer = { name = "sgd", lr = 0.001 } # untuned
[cohort]
size = 5
[evaluation]
every = 1
[engine]
workers = 0
[tuning.space]
client.optimizer.lr = { grid = [0.01, 0.1] }
"""
