-- Put blocks into todo, with the header of the table that has their rows. Sent again it issues them again: a block that
-- is there twice is played twice, and the first result counts.
-- ARGV: token publication task front {blocks}
local publication, task, front, blocks = argument(), argument(), argument() == '1', list()
if redis.call('HGET', run .. 'progress', 'publication') ~= publication then return 0 end
if task ~= '' then redis.call('SET', run .. 'task', task, 'KEEPTTL') end
local items = blocks
if front then
  items = {}
  for i = #blocks, 1, -1 do items[#items + 1] = blocks[i] end
end
for first = 1, #items, 1000 do -- Lua unpacks no more at once
  redis.call(front and 'LPUSH' or 'RPUSH', run .. 'todo', unpack(items, first, math.min(first + 999, #items)))
end
redis.call('EXPIRE', run .. 'todo', RUN_SECONDS) -- opening has removed the list, and with it when it expires
return 1
