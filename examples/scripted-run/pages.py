def start(page, size):
    return page * size
