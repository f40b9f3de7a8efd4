-- Append a block's results and moments to the first part that has room, and remove its claim, at once. A worker's script:
-- it is not fenced. Parts are counted from the first one: nobody would read a later one if Redis has lost the others.
-- Returns {whether the publication is open, what the worker still holds}.
-- KEYS: claims:<worker>      ARGV: block results moments
local run, publication = string.match(KEYS[1], '^es:[^:]*:'), string.match(ARGV[1], '^%S+')
local function key(kind, part) return run .. kind .. publication .. ':' .. part end

local open = redis.call('EXISTS', key('results:', 0)) == 1
if open then
  local part = 0
  while redis.call('EXISTS', key('results:', part + 1)) == 1 do part = part + 1 end
  local results = redis.call('STRLEN', key('results:', part))
  local moments = redis.call('STRLEN', key('moments:', part))
  local is_full = results + #ARGV[2] > PART or moments + #ARGV[3] > PART
  if is_full and results + moments > 0 then part = part + 1 end
  redis.call('APPEND', key('results:', part), ARGV[2])
  redis.call('APPEND', key('moments:', part), ARGV[3])
  if part > 0 then
    redis.call('EXPIRE', key('results:', part), RUN_SECONDS)
    redis.call('EXPIRE', key('moments:', part), RUN_SECONDS)
  end
  if redis.call('LLEN', run .. 'bell') == 0 then
    redis.call('RPUSH', run .. 'bell', 1)
    redis.call('EXPIRE', run .. 'bell', RUN_SECONDS)
  end
end
redis.call('LREM', KEYS[1], 0, ARGV[1])
return { open and 1 or 0, redis.call('LRANGE', KEYS[1], 0, MOST_HELD - 1) }
