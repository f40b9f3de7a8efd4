-- Append blocks of the open publication to todo.
-- KEYS: epoch progress todo      ARGV: token publication {blocks}
local publication, blocks = argument(), list()
if redis.call('HGET', KEYS[2], 'publication') ~= publication then return 0 end
in_pieces('RPUSH', KEYS[3], blocks)
return 1
