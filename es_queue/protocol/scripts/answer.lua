-- Append a block's results and moments to the first part that has room, and remove its claim, at once. A worker's script:
-- it is not fenced. Parts are counted from the first one: nobody would read a later one if Redis has lost the others.
-- Returns {whether the publication is open, what the worker still holds}.
-- KEYS: claims:<worker>      ARGV: block results moments
local run, publication = string.match(KEYS[1], '^es:[^:]*:'), string.match(ARGV[1], '^%S+')
local results, moments = run .. 'results:' .. publication .. ':', run .. 'moments:' .. publication .. ':'
local open = redis.call('EXISTS', results .. '0') == 1
if open then
  local part = 0
  while redis.call('EXISTS', results .. (part + 1)) == 1 do part = part + 1 end
  local filled, beside = redis.call('STRLEN', results .. part), redis.call('STRLEN', moments .. part)
  local is_full = filled + #ARGV[2] > PART or beside + #ARGV[3] > PART
  if is_full and filled + beside > 0 then part = part + 1 end
  redis.call('APPEND', results .. part, ARGV[2])
  redis.call('APPEND', moments .. part, ARGV[3])
  if part > 0 then
    redis.call('EXPIRE', results .. part, RUN_SECONDS)
    redis.call('EXPIRE', moments .. part, RUN_SECONDS)
  end
  if redis.call('LLEN', run .. 'bell') == 0 then
    redis.call('RPUSH', run .. 'bell', 1)
    redis.call('EXPIRE', run .. 'bell', RUN_SECONDS)
  end
end
redis.call('LREM', KEYS[1], 0, ARGV[1])
return { open and 1 or 0, redis.call('LRANGE', KEYS[1], 0, MOST_HELD - 1) }
