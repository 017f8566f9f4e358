"""The proxy of a ModelAPI: holds its key, and passes the requests of allowed Agents on."""
